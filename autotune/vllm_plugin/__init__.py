"""The only code that runs inside vLLM's processes: live N (scheduler) and step timing (worker).

Nothing here acts unless spectune started the engine: the scheduler needs the control file that
SPECTUNE_CONTROL names, the worker extension does nothing until it is called.
The modules import nothing of spectune but each other, so that they also load in an interpreter
that has vLLM but not spectune's own dependencies.
"""
