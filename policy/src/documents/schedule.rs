//! Schedule: named weekly windows in a time zone, to which other documents refer.

use std::collections::BTreeSet;

use serde::Serialize;

use super::Spec;
use crate::kind::Kind;
use crate::limits::MAX_WINDOWS;
use crate::problem::ProblemCode;
use crate::reading::fields::{FieldReader, Fields};

use weekly_window::{MINUTES_PER_WEEK, Window, read_dates, read_window};

pub(crate) mod weekly_window;

/// Weekly windows. It is open while a window is, in the wall-clock time of its zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Schedule {
    /// `timeZone`: an IANA name such as `Europe/Zurich`.
    pub time_zone: String,
    /// `windows`, one for each day that an entry names.
    pub windows: Vec<Window>,
    /// `except`: dates on which no window begins, in days since 1970.
    pub except: BTreeSet<i32>,
    /// `description`: for people; may be empty.
    pub description: String,
}

impl Spec for Schedule {
    const KIND: Kind = Kind::Schedule;

    fn read(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let time_zone = fields.required("timeZone", reader).and_then(|(path, node)| reader.time_zone(&path, node));
        let windows_field = fields.required("windows", reader);
        let windows = windows_field.clone().map(|(path, node)| {
            reader.require_items(
                &path,
                node,
                "write for example `- {days: [mon, tue], from: \"08:00\", until: \"18:00\"}`",
            );
            let read: Vec<Vec<Window>> = reader.list(&path, node, read_window);
            let windows: Vec<Window> = read.into_iter().flatten().collect();
            if windows.len() > MAX_WINDOWS {
                let message =
                    format!("{} has {} windows; at most {MAX_WINDOWS} are allowed", reader.label, windows.len());
                reader.problems.at(node.place, ProblemCode::TooLarge, message, "merge windows, or write two schedules");
            } else if covers_the_week(&windows) {
                let message = format!("the windows of {} cover the whole week", reader.label);
                let remedy = "a schedule that never closes changes nothing: shorten a window, or remove the schedule";
                reader.problems.at(node.place, ProblemCode::Contradiction, message, remedy);
            }
            windows
        });
        let except = fields.optional("except", reader).map(|(path, node)| read_dates(&path, node, reader));
        let description = fields.optional("description", reader).and_then(|(path, node)| reader.text(&path, node));
        let mut windows = windows?;
        windows.sort_unstable();
        if let Some((_, node)) = windows_field.filter(|_| windows.windows(2).any(|pair| pair[0] == pair[1])) {
            let message = format!("two windows of {} are the same", reader.label);
            reader.problems.at(node.place, ProblemCode::DuplicateName, message, "remove one of them");
        }
        Some(Self {
            time_zone: time_zone?,
            windows,
            except: except.unwrap_or_default(),
            description: description.unwrap_or_default(),
        })
    }
}

/// Whether some window is open at each minute of a week without exceptions.
fn covers_the_week(windows: &[Window]) -> bool {
    let spans = windows.iter().flat_map(|window| {
        let end = window.from + window.minutes;
        // A window over the end of the week goes on at its begin.
        [(window.from, end.min(MINUTES_PER_WEEK)), (0, end.saturating_sub(MINUTES_PER_WEEK))]
    });
    let mut spans: Vec<(u32, u32)> = spans.collect();
    spans.sort_unstable();
    let mut covered = 0;
    for (from, until) in spans {
        if from > covered {
            return false;
        }
        covered = covered.max(until);
    }
    covered >= MINUTES_PER_WEEK
}
