"""Run a job's script here, harmlessly: `runner` prepares its world, `sandbox` throws away what it does to ours."""
