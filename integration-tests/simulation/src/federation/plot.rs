//! A picture of a report.

use std::fmt::Write as _;

use super::report::{FederationReport, Figures};

const WIDTH: u64 = 1_200;
const PANEL: u64 = 220;
const MARGIN: u64 = 48;
/// Told apart also by those who see few colours (Okabe and Ito).
const WAYS: [(&str, &str); 3] = [("isolated", "#E69F00"), ("federated", "#0072B2"), ("one cluster", "#999999")];

/// GPUs that are stranded at each institution, and GPUs that its tasks wait for, in the three ways, as an SVG.
#[must_use]
pub fn svg(report: &FederationReport) -> String {
    let height = 2 * PANEL + 2 * MARGIN;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (number, (name, colour)) in (0..).zip(WAYS) {
        let _ = writeln!(text, "<text x=\"{}\" y=\"20\" fill=\"{colour}\">{name}</text>", MARGIN + 120 * number);
    }
    panel(&mut text, report, MARGIN, "GPUs stranded, by whose they are", |figures| figures.stranded_milli);
    panel(&mut text, report, MARGIN + PANEL, "GPUs waited for, by who waits", |figures| figures.unplaced_milli);
    text.push_str("</svg>\n");
    text
}

fn panel(text: &mut String, report: &FederationReport, top: u64, title: &str, of: fn(&Figures) -> u64) {
    let ways = |at: usize| {
        let one = &report.institutions[at];
        [one.isolated, one.federated, one.one_cluster].map(|figures| of(&figures))
    };
    let count = report.institutions.len();
    let most = (0..count).flat_map(ways).max().unwrap_or(0).max(1);
    let (room, bottom) = (PANEL - MARGIN, top + PANEL - MARGIN / 2);
    let each = (WIDTH - 2 * MARGIN) / u64::try_from(count.max(1)).unwrap_or(u64::MAX);
    let _ = writeln!(
        text,
        "<text x=\"{MARGIN}\" y=\"{}\">{title}; the highest bar is {}.{}</text>",
        top + 12,
        most / 1_000,
        most % 1_000 / 100
    );
    for (number, at) in (0..).zip(0..count) {
        let left = MARGIN + number * each;
        for (way, (value, (_, colour))) in (0..).zip(ways(at).into_iter().zip(WAYS)) {
            let (width, high) = ((each / 4).max(1), value * room / most);
            let _ = writeln!(
                text,
                "<rect x=\"{}\" y=\"{}\" width=\"{width}\" height=\"{high}\" fill=\"{colour}\"/>",
                left + way * width,
                bottom - high
            );
        }
        let _ = writeln!(text, "<text x=\"{left}\" y=\"{}\" font-size=\"9\">{}</text>", bottom + 14, number + 1);
    }
}
