"""The docs site: the pages of `docs/`, and the reference that is written from the code.

python -m scripts.docs_site                # builds build/docs/site, strictly
"""

from __future__ import annotations
