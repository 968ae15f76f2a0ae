"""Reports: terminal tables, and one self-contained HTML file, from ladders and RunResults alone.

Nothing here measures, and nothing here needs mxnet; matplotlib is imported when a figure is drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.report.comparing import Comparison as Comparison
    from gluontune.report.comparing import compare as compare
    from gluontune.report.comparing import comparison_table as comparison_table
    from gluontune.report.factors import factors_tables as factors_tables
    from gluontune.report.live import LiveLadder as LiveLadder
    from gluontune.report.page import write_document_html as write_document_html
    from gluontune.report.page import write_html as write_html
    from gluontune.report.page import write_ladder_html as write_ladder_html
    from gluontune.report.page import write_runs_html as write_runs_html
    from gluontune.report.page import write_svg as write_svg
    from gluontune.report.read import Source as Source
    from gluontune.report.read import check_ladder as check_ladder
    from gluontune.report.read import collect as collect
    from gluontune.report.read import load as load
    from gluontune.report.sentence import ladder_sentence as ladder_sentence
    from gluontune.report.sentence import sentence_parts as sentence_parts
    from gluontune.report.table import ladder_table as ladder_table
    from gluontune.report.table import print_sources as print_sources
    from gluontune.report.table import runs_table as runs_table
    from gluontune.report.table import summary as summary
    from gluontune.report.tta import check_comparable as check_comparable
    from gluontune.report.tta import load_tta as load_tta
    from gluontune.report.tta import summary_lines
    from gluontune.report.tta import tta_table as tta_table

    tta_lines = summary_lines
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
