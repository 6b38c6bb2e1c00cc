"""Which files make the page, in the order in which they are put into it."""

from __future__ import annotations

PAGE_FILES: dict[str, list[str]] = {
    "css": ["style.css"],
    "js": [
        # tools
        "dom.js",
        "format.js",
        "color.js",
        "tip.js",
        "table.js",
        "panel.js",
        "linechart.js",
        "heatmap.js",
        "run_data.js",
        "crowd.js",
        # one file for each panel, the fleet's in five
        "header.js",
        "overview.js",
        "curves.js",
        "lane_drawing.js",
        "lane_controls.js",
        "lanes.js",
        "group_lanes.js",
        "fleet.js",
        "coverage.js",
        "rolling.js",
        "masks.js",
        "weights.js",
        "devices.js",
        "troubles.js",
        "compare_runs.js",
        "study_table.js",
        "study_parts.js",
        "studies.js",
        # the page
        "live.js",
        "main.js",
    ],
}
