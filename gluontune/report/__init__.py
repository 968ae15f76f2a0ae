"""Reports: terminal tables, and one self-contained HTML file, from ladders and RunResults.

The room does not measure and does not need mxnet; matplotlib is imported when a figure is drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.report.comparing import (
        Comparison as Comparison,
        compare as compare,
        comparison_table as comparison_table,
    )
    from gluontune.report.factors import factors_tables as factors_tables
    from gluontune.report.live import LiveLadder as LiveLadder
    from gluontune.report.page import (
        write_document_html as write_document_html,
        write_html as write_html,
        write_ladder_html as write_ladder_html,
        write_runs_html as write_runs_html,
        write_svg as write_svg,
    )
    from gluontune.report.read import Source as Source, check_ladder as check_ladder, collect as collect, load as load
    from gluontune.report.sentence import ladder_sentence as ladder_sentence, sentence_parts as sentence_parts
    from gluontune.report.table import (
        ladder_table as ladder_table,
        print_sources as print_sources,
        runs_table as runs_table,
        summary as summary,
    )
    from gluontune.report.tta import (
        check_comparable as check_comparable,
        load_tta as load_tta,
        summary_lines,
        tta_table as tta_table,
    )

    tta_lines = summary_lines
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
