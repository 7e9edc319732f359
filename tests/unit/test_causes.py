"""What is told of a Spark job that failed: the words that help, out of the traces of two languages."""

from __future__ import annotations

import pytest

from tallystick.spark.prepare import cause_of

CHAIN = """An error occurred while calling o214.collectToPython.
: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/3.json.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.cannotReadFilesError(QueryExecutionErrors.scala:940)
Caused by: java.util.concurrent.ExecutionException: wrapped
\tat org.apache.spark.sql.catalyst.util.FailureSafeParser.parse(FailureSafeParser.scala:84)
Caused by: org.apache.spark.SparkException: [MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed records.
\t... 22 more
Caused by: com.fasterxml.jackson.core.io.JsonEOFException: Unexpected end-of-input
\t... 25 more
"""
INTERRUPTED = "An error occurred while calling o1.collectToPython.\n: java.lang.InterruptedException\n\tat java.base/x"
IN_PYTHON = """An error occurred while calling o1.collectToPython.
: org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] Traceback (most recent call last):
  File "job.py", line 3, in split
ZeroDivisionError: division by zero
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:665)
"""
OURS = IN_PYTHON.replace("ZeroDivisionError: division", "tallystick.errors.SinkError: the target is full, division")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            CHAIN,
            "org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file "
            "file:///in/3.json.; org.apache.spark.SparkException: [MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] "
            "Malformed records.; com.fasterxml.jackson.core.io.JsonEOFException: Unexpected end-of-input",
        ),
        (INTERRUPTED, "java.lang.InterruptedException"),
        (IN_PYTHON, "ZeroDivisionError: division by zero"),
        (OURS, "the target is full, division by zero"),
        ("it just stopped\nat once", "it just stopped"),
    ],
    ids=["jvm", "interrupted", "python", "ours", "unknown"],
)
def test_the_words_of_the_cause(text: str, told: str) -> None:
    assert cause_of(text) == told
