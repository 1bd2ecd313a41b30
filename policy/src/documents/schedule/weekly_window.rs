//! The windows of a Schedule, and the dates on which none begins.

use std::collections::BTreeSet;

use jiff::Unit;
use jiff::civil::Date;
use serde::Serialize;

use crate::problem::{ProblemCode, shorten};
use crate::reading::fields::{FieldReader, Fields};
use crate::reading::shapes::Shape;
use crate::reading::yaml::Node;

pub(crate) const MINUTES_PER_DAY: u32 = 24 * 60;
/// Minutes of a week.
pub(crate) const MINUTES_PER_WEEK: u32 = 7 * MINUTES_PER_DAY;

/// One window of a week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Window {
    /// Minute at which it begins, from Monday 00:00.
    pub from: u32,
    /// Its length by the clock, in minutes; at least 1, less than a week.
    pub minutes: u32,
}

/// Days of a window, with the first minute of each from Monday 00:00.
const DAYS: [(&str, u32); 7] = [
    ("mon", 0),
    ("tue", MINUTES_PER_DAY),
    ("wed", 2 * MINUTES_PER_DAY),
    ("thu", 3 * MINUTES_PER_DAY),
    ("fri", 4 * MINUTES_PER_DAY),
    ("sat", 5 * MINUTES_PER_DAY),
    ("sun", 6 * MINUTES_PER_DAY),
];

const START_PATTERN: &str = "^([01][0-9]|2[0-3]):[0-5][0-9]$";
const END_PATTERN: &str = "^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$";
const DATE_PATTERN: &str = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$";

/// One entry of `windows`: a window for each of its days. One that ends at or before its begin ends on the next day.
pub(super) fn read_window(reader: &mut FieldReader<'_, '_>, path: &str, node: &Node) -> Option<Vec<Window>> {
    let mut fields = Fields::open(node, path, reader)?;
    let days = fields.required("days", reader).map(|(path, node)| {
        reader.require_items(&path, node, "name at least one day: mon, tue, wed, thu, fri, sat or sun");
        let words = DAYS.map(|(day, _)| (day, day));
        reader.set(&path, node, |reader, path, node| reader.word(path, node, &words))
    });
    let from = fields.required("from", reader).and_then(|(path, node)| read_clock(reader, &path, node, false));
    let until = fields.required("until", reader).and_then(|(path, node)| read_clock(reader, &path, node, true));
    fields.finish(reader);
    let (days, from, until) = (days?, from?, until?);
    let minutes = if until > from { until - from } else { MINUTES_PER_DAY - from + until };
    let starts = DAYS.into_iter().filter(|(day, _)| days.contains(day)).map(|(_, start)| start);
    Some(starts.map(|day| Window { from: (day + from) % MINUTES_PER_WEEK, minutes }).collect())
}

/// `08:30` in minutes; `24:00` is the end of a day.
fn read_clock(reader: &mut FieldReader<'_, '_>, path: &str, node: &Node, is_end: bool) -> Option<u32> {
    let text = reader.scalar(path, node)?;
    reader.note(path, || Shape::Pattern(if is_end { END_PATTERN } else { START_PATTERN }));
    let two = |part: &str| (part.len() == 2).then(|| part.parse::<u8>().ok()).flatten().map(u32::from);
    let read = |text: &str| {
        let (hours, minutes) = text.split_once(':')?;
        match (two(hours)?, two(minutes)?) {
            (hours @ 0..=23, minutes @ 0..=59) => Some(hours * 60 + minutes),
            (24, 0) if is_end => Some(MINUTES_PER_DAY),
            _ => None,
        }
    };
    let parsed = read(text);
    if parsed.is_none() {
        let message = format!("`{path}: {}` of {} is not a time of day", shorten(text), reader.label);
        let padded = format!("0{text}");
        let remedy = if read(&padded).is_some() {
            format!("write two digits for the hour: \"{padded}\"")
        } else {
            let end = if is_end { "24:00" } else { "23:59" };
            format!("write hours and minutes in quotes, from \"00:00\" to \"{end}\"")
        };
        reader.problems.at(node.place, ProblemCode::InvalidDate, message, remedy);
    }
    parsed
}

/// Dates such as `2026-12-25`, in days since 1970.
pub(super) fn read_dates(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> BTreeSet<i32> {
    let dates = reader.set(path, node, |reader, path, node| {
        let text = reader.scalar(path, node)?;
        reader.note(path, || Shape::Pattern(DATE_PATTERN));
        let date = text.parse::<Date>().ok().filter(|_| text.len() == 10);
        if date.is_none() {
            let message = format!("`{path}: {}` of {} is not a date", shorten(text), reader.label);
            reader.problems.at(node.place, ProblemCode::InvalidDate, message, "write it like `2026-12-25`");
        }
        date
    });
    let day = |date: Date| date.since((Unit::Day, Date::constant(1970, 1, 1))).ok().map(|span| span.get_days());
    dates.into_iter().filter_map(day).collect()
}
