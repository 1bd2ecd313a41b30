//! Mistakes in an inventory file: all of them, each with its place and a remedy.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_saphyr::Location;

/// Largest distance (Jaro-Winkler) at which another field is suggested.
const SIMILAR: f64 = 0.8;
/// Mistakes that one reading reports.
const MAX_MISTAKES: usize = 50;

/// Characters between a key and its colon, at most: a quote and some blanks.
const KEY_END_CHARS: usize = 16;
/// Start of names that the YAML parser makes up.
const PARSER_STEP: &str = "__";

const NODE_FIELDS: &[&str] =
    &["name", "cpu", "memory", "schedulable", "ready", "localUse", "gpus", "numa", "rdma", "enforces"];
const GPU_FIELDS: &[&str] = &[
    "count",
    "product",
    "memoryMiB",
    "architecture",
    "computeCapability",
    "driverVersion",
    "sharing",
    "resourceName",
    "healthy",
    "fault",
    "numa",
    "nvlink",
];
const LOCAL_USE_FIELDS: &[&str] = &["cpu", "memory", "gpus"];
const NUMA_FIELDS: &[&str] = &["cpu", "memory"];

/// Fields of a node, of its GPUs, of its local use and of its NUMA nodes.
#[cfg(test)]
pub(super) const KNOWN_FIELDS: [&[&str]; 4] = [NODE_FIELDS, GPU_FIELDS, LOCAL_USE_FIELDS, NUMA_FIELDS];

/// One mistake and its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}:{column}: {reason}", path.display())]
pub struct InventoryMistake {
    /// The file.
    pub path: PathBuf,
    /// Line, from 1.
    pub line: u64,
    /// Column, from 1.
    pub column: u64,
    /// Field, value and remedy.
    pub reason: String,
}

impl InventoryMistake {
    pub(super) fn new(path: &Path, location: Location, reason: String) -> Self {
        Self { path: path.to_owned(), line: location.line().max(1), column: location.column().max(1), reason }
    }
}

/// A problem and its place in the file.
pub(super) struct Problem(pub(super) Location, pub(super) String);

/// Collects problems.
#[derive(Default)]
pub(super) struct Problems(pub(super) Vec<Problem>);

impl Problems {
    /// The value, or `None` with its problem recorded.
    pub(super) fn take<T>(&mut self, result: Result<T, Problem>) -> Option<T> {
        result.map_err(|problem| self.push(problem)).ok()
    }

    /// Records a problem.
    pub(super) fn push(&mut self, problem: Problem) {
        if self.0.len() < MAX_MISTAKES {
            self.0.push(problem);
        }
    }

    /// A required field; `example` is a whole line.
    pub(super) fn required<'a, T>(&mut self, given: &'a Option<T>, at: Location, example: &str) -> Option<&'a T> {
        if given.is_none() {
            let field = example.split(':').next().unwrap_or_default();
            self.push(Problem(at, format!("{field} is missing; write it, as in {example}")));
        }
        given.as_ref()
    }
}

/// The mistake that an unknown field is, with the field that was meant.
pub(super) struct UnknownFields<'a> {
    path: &'a Path,
    text: &'a str,
    /// How often each field was found.
    found: BTreeMap<String, usize>,
    pub(super) mistakes: Vec<InventoryMistake>,
}

impl<'a> UnknownFields<'a> {
    pub(super) fn new(path: &'a Path, text: &'a str) -> Self {
        Self { path, text, found: BTreeMap::new(), mistakes: Vec::new() }
    }

    /// Records the field at a path such as `nodes.0.?.value.gpus.?.1.?.value.drivreVersion`: besides names and numbers of
    /// entries it has the parser's own steps to a value with its place.
    pub(super) fn record(&mut self, at: &str) {
        let mut steps = at.split('.').rev();
        let field = steps.next().unwrap_or_default().to_owned();
        let is_place = steps.clone().any(|step| ["referenced", "defined"].contains(&step));
        if self.mistakes.len() >= MAX_MISTAKES || field.starts_with(PARSER_STEP) || is_place {
            return;
        }
        let mut names = steps.filter(|step| !["?", "value"].contains(step) && step.parse::<u64>().is_err());
        let known = match names.next() {
            Some("gpus") => GPU_FIELDS,
            Some("localUse") => LOCAL_USE_FIELDS,
            Some("numa") => NUMA_FIELDS,
            Some(_) => NODE_FIELDS,
            None => &["nodes"],
        };
        let nearest = known
            .iter()
            .map(|known| (strsim::jaro_winkler(&known.to_lowercase(), &field.to_lowercase()), *known))
            .filter(|(similarity, _)| *similarity >= SIMILAR)
            .max_by(|one, other| one.0.total_cmp(&other.0));
        let remedy = match nearest {
            Some((_, meant)) => format!("did you mean {meant}?"),
            None => format!("the fields here are {}", known.join(", ")),
        };
        let nth = self.found.entry(field.clone()).or_default();
        let (line, column) = place_of(self.text, &field, *nth).unwrap_or((1, 1));
        *nth += 1;
        let reason = format!("unknown field {field}; {remedy}");
        self.mistakes.push(InventoryMistake { path: self.path.to_owned(), line, column, reason });
    }
}

/// Line and column of the nth place where a key stands.
fn place_of(text: &str, key: &str, nth: usize) -> Option<(u64, u64)> {
    let places = text.lines().zip(1_u64..).flat_map(|(line, number)| {
        let is_key = move |at: &usize| {
            let before = line[..*at].chars().next_back().is_none_or(|letter| " ,{-\"'".contains(letter));
            // Bounded: otherwise a long row of quotes takes the square of its length.
            let mut after = line[*at + key.len()..].chars().take(KEY_END_CHARS).skip_while(|end| "\"' ".contains(*end));
            before && after.next() == Some(':')
        };
        let found = line.match_indices(key).map(|(at, _)| at).filter(is_key);
        found.map(move |at| (number, u64::try_from(at).unwrap_or(0) + 1)).collect::<Vec<_>>()
    });
    places.into_iter().nth(nth)
}
