"""A folder for PYTHONPATH: Python imports `sitecustomize` from it when the program under test starts."""
