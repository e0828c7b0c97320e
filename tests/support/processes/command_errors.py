"""Check how a command reports a failure."""


def one_line_error(result, *, code, contains):
    """Assert that a command failed as every failure must: an exit code, one line, no traceback."""
    assert result.code == code, result.err
    assert "Traceback" not in result.err
    lines = [line for line in result.err.splitlines() if line.startswith("mirror-rt: error: ")]
    assert len(lines) == 1, result.err
    assert contains in lines[0]
