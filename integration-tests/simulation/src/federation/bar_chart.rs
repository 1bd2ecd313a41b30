//! Draws a federation report as an SVG.

use std::fmt::Write as _;

use super::federation_report::{CaseFigures, FederationReport};
use crate::svg::{self, WIDTH};

/// Margin for the labels of the vertical axis.
const LEFT: u64 = 72;
const RIGHT: u64 = 24;
const LEGEND: u64 = 44;
/// Heights of a panel's title, bars and labels.
const TITLE: u64 = 30;
const BARS: u64 = 180;
const NAMES: u64 = 50;
/// Width of an institution's label, so that labels do not overlap.
const NAME_WIDTH: u64 = 24;
/// Maximum steps of the vertical axis.
const MOST_STEPS: u64 = 5;
/// Colours for colour-blind readers (Okabe and Ito).
const WAYS: [(&str, &str); 3] = [
    ("isolated: each keeps to itself", "#E69F00"),
    ("federated: each borrows what does not fit at home", "#0072B2"),
    ("one cluster of all nodes", "#999999"),
];

/// Plots the stranded GPUs and the unplaced GPU demand of each institution in the three cases.
#[must_use]
pub fn svg(report: &FederationReport) -> String {
    let panel_height = TITLE + BARS + NAMES;
    let mut text = svg::open(LEGEND + 2 * panel_height);
    for (number, (name, colour)) in (0..).zip(WAYS) {
        let at = LEFT + 390 * number;
        let _ = writeln!(
            text,
            "<rect x=\"{at}\" y=\"16\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\n\
             <text x=\"{}\" y=\"26\">{name}</text>",
            at + 18
        );
    }
    let stranded = "GPUs that nobody uses in the end, by the institution that owns them";
    let unplaced = "GPUs that tasks without a place ask for, by the institution that waits";
    panel(&mut text, report, LEGEND, stranded, |figures| figures.stranded_milli);
    panel(&mut text, report, LEGEND + panel_height, unplaced, |figures| figures.unplaced_milli);
    text.push_str("</svg>\n");
    text
}

fn panel(text: &mut String, report: &FederationReport, top: u64, title: &str, of: fn(&CaseFigures) -> u64) {
    let ways = |at: usize| {
        let one = &report.institutions[at];
        [one.isolated, one.federated, one.one_cluster].map(|figures| of(&figures))
    };
    let count = report.institutions.len();
    let most = (0..count).flat_map(ways).max().unwrap_or(0);
    let axis = Axis { bottom: top + TITLE + BARS, step: step(most.div_ceil(1_000)), most };
    let _ = writeln!(text, "<text x=\"{LEFT}\" y=\"{}\" font-weight=\"bold\">{title}</text>", top + TITLE - 14);
    axis.draw(text);
    let all = u64::try_from(count.max(1)).unwrap_or(u64::MAX);
    // Computed from the number, so that rounding errors do not add up.
    let left = |number: u64| LEFT + number * (WIDTH - LEFT - RIGHT) / all;
    let named = (NAME_WIDTH * all).div_ceil(WIDTH - LEFT - RIGHT).max(1);
    for (number, at) in (0..).zip(0..count) {
        let room = left(number + 1) - left(number);
        let (name, width) = (&report.institutions[at].name, (room / 4).max(1));
        let first = left(number) + room.saturating_sub(3 * width) / 2;
        for (way, (value, (way_name, colour))) in (0..).zip(ways(at).into_iter().zip(WAYS)) {
            let y = axis.y(value);
            let what = way_name.split(':').next().unwrap_or(way_name);
            let _ = writeln!(
                text,
                "<rect x=\"{}\" y=\"{y}\" width=\"{width}\" height=\"{}\" fill=\"{colour}\">\
                 <title>{name}, {what}: {}.{} GPUs</title></rect>",
                first + way * width,
                axis.bottom - y,
                value / 1_000,
                value % 1_000 / 100
            );
        }
        if number % named == 0 {
            let (x, y) = (left(number) + room / 2, axis.bottom + 16);
            let _ = writeln!(text, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{}</text>", number + 1);
        }
    }
    let (x, y) = (LEFT + (WIDTH - LEFT - RIGHT) / 2, axis.bottom + 34);
    let _ = writeln!(text, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">number of the institution</text>");
}

/// The vertical axis of a panel.
struct Axis {
    /// Vertical position of zero.
    bottom: u64,
    /// GPUs between two lines.
    step: u64,
    /// The highest value, in thousandths.
    most: u64,
}

impl Axis {
    /// GPUs at the top.
    fn top(&self) -> u64 {
        self.most.div_ceil(1_000).div_ceil(self.step).max(1) * self.step
    }

    fn y(&self, milli: u64) -> u64 {
        self.bottom - milli * BARS / (self.top() * 1_000)
    }

    fn draw(&self, text: &mut String) {
        let right = WIDTH - RIGHT;
        for gpus in (0..=self.top()).step_by(usize::try_from(self.step).unwrap_or(1)) {
            let (y, stroke) = (self.y(gpus * 1_000), if gpus == 0 { "#444" } else { "#ddd" });
            let _ = writeln!(
                text,
                "<path d=\"M{LEFT} {y}H{right}\" stroke=\"{stroke}\"/>\n\
                 <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{gpus}</text>",
                LEFT - 8,
                y + 4
            );
        }
        let middle = self.bottom - BARS / 2;
        let _ = writeln!(
            text,
            "<text x=\"18\" y=\"{middle}\" text-anchor=\"middle\" transform=\"rotate(-90 18 {middle})\">GPUs</text>"
        );
    }
}

/// The smallest of 1, 2, 5, 10, 20, 50, ... that reaches `most` within [`MOST_STEPS`] steps.
fn step(most: u64) -> u64 {
    let tens = std::iter::successors(Some(1_u64), |ten| ten.checked_mul(10));
    let steps = tens.flat_map(|ten| [1, 2, 5].map(|times| ten.saturating_mul(times)));
    steps.into_iter().find(|step| step.saturating_mul(MOST_STEPS) >= most).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_few_round_steps_and_room_for_all() {
        assert_eq!([0, 1, 5, 6, 10, 11, 44, 324, 6_212].map(step), [1, 1, 1, 2, 2, 5, 10, 100, 2_000]);
        let axis = Axis { bottom: 300, step: step(12), most: 11_500 };
        assert_eq!((axis.top(), axis.y(0), axis.y(15_000)), (15, 300, 300 - BARS));
        assert!(axis.y(axis.most) > 300 - BARS);
        let nothing = Axis { bottom: 300, step: step(0), most: 0 };
        assert_eq!((nothing.top(), nothing.y(0)), (1, 300));
    }
}
