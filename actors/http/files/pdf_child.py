"""`python -m actors.http.files.pdf_child FILE`: the text of a PDF to standard output, by pypdf.

A process of its own: what a document makes of time and memory ends with it. Exit status 1 says that
the file is no PDF that can be read.
"""

from __future__ import annotations

import logging
import sys


def main() -> int:
    """Write page by page, so that whoever reads may stop."""
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    logging.disable(logging.CRITICAL)
    out = sys.stdout.buffer
    try:
        for number, page in enumerate(PdfReader(sys.argv[1]).pages):
            text = page.extract_text()
            out.write((("\n\f" if number else "") + text).encode("utf-8", "replace"))
            out.flush()
    except BrokenPipeError:
        return 0
    except (PyPdfError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        sys.stderr.write(f"{type(error).__name__}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
