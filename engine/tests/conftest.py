"""The engine's tests: pytest's hooks and the fixtures are those of testing.py."""


def pytest_addoption(pluginmanager):
    pluginmanager.import_plugin("testing")
