"""The declared training that tests of the convex bound start from: every condition holds."""

from strategies.mechanisms.sensitivity import LocalTraining

# R^2 = 1 + 1 = 2: softmax has G = 2, L = 1, so that eta may be up to 2.
SOFTMAX = LocalTraining(
    loss="softmax_cross_entropy",
    optimizer="sgd",
    momentum=0.0,
    weight_decay=0.0,
    proximal=0.0,
    learning_rates=(1.0,),
    batch_size=16,
    feature_norm=1.0,
    has_bias=True,
    per_example_clipping=False,
    class_weights=False,
    input_dropout=False,
    trainable_lower_layers=False,
    keeps_state_between_rounds=False,
    float64=True,
    data_dependent_preprocessing=False,
    defined_for_all_records=True,
    sampling="fixed",
    disjoint_batches=True,
    full_batches=True,
)
