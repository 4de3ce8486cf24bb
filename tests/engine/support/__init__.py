"""Parts of the tests on a real engine: the manager process, an engine, hold points and memory."""
