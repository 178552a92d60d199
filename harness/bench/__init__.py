"""What every bench session does, whatever the engine: arms, plan, experiment, decision, report."""
