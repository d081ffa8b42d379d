"""The application: configuration, data, models, engines and the command line."""
