//! Draws a month report as an SVG.

use std::fmt::Write as _;

use super::month_report::MonthReport;
use crate::svg::{self, WIDTH};

const HEIGHT: u64 = 360;
const MARGIN: u64 = 40;
/// Colours for colour-blind readers (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#000000", "#999999"];

/// Plots the GPUs that each institution's tenants hold, by hour.
#[must_use]
pub fn svg(report: &MonthReport) -> String {
    let hours = report.samples.last().map_or(1, |last| last.hour.max(1));
    let most = report.samples.iter().flat_map(|sample| &sample.held).max().copied().unwrap_or(1).max(1);
    let mut text = svg::open(HEIGHT);
    let (x, y) = (
        |hour: u64| MARGIN + hour * (WIDTH - 2 * MARGIN) / hours,
        |held: u64| HEIGHT - MARGIN - held * (HEIGHT - 2 * MARGIN) / most,
    );
    for day in 0..=hours / 24 {
        let at = x(day * 24);
        let stroke = if day == report.peak_days { "#888" } else { "#eee" };
        let (top, bottom) = (MARGIN, HEIGHT - MARGIN);
        let _ = writeln!(text, "<path d=\"M{at} {top}V{bottom}\" stroke=\"{stroke}\"/>");
    }
    for (index, institution) in report.institutions.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let points = report
            .samples
            .iter()
            .map(|sample| format!("{},{}", x(sample.hour), y(sample.held.get(index).copied().unwrap_or(0))));
        let points: Vec<String> = points.collect();
        let _ = writeln!(text, "<polyline fill=\"none\" stroke=\"{colour}\" points=\"{}\"/>", points.join(" "));
        let at = MARGIN + 180 * index as u64;
        let _ = writeln!(
            text,
            "<text x=\"{at}\" y=\"24\" fill=\"{colour}\">{} ({} GPUs lent of)</text>",
            institution.institution, institution.gpus
        );
    }
    let (left, bottom) = (MARGIN, HEIGHT - 12);
    let _ = writeln!(
        text,
        "<text x=\"{left}\" y=\"{bottom}\">GPUs held by tenants of each institution, at most {most}; one line a day; \
         after the dark line all are backlogged</text>\n</svg>"
    );
    text
}
