"""The names of what a run leaves behind."""

METRICS_FILE, SUMMARY_FILE, PRIVACY_FILE = "metrics.jsonl", "summary.json", "privacy.json"
CONFIG_FILE, MODEL_FILE = "config.yaml", "model.safetensors"
LOG_FILE, CLIENT_LOG = "run.log", "clients.log"
REPORT_FILE, PLOTS_FOLDER, LOCK_FILE = "report.html", "plots", ".lock"
BEST_POINT_FILE, SHARED_FUNCTION_FILE = "best_point.json", "shared_function.json"
QUERIES_FILE = "queries.jsonl"
CHECKPOINT_FOLDER = "checkpoint"
# A folder of simulated clients is one run's, whose number on Flower changes when it goes on.
SIMULATED_RUN = "simulated"
