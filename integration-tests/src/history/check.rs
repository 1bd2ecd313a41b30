//! Checks a history with the WGL checker of `todc-utils`, which has no dependencies; `porcupine-rs` needs criterion and
//! an unmaintained crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use todc_utils::{Action, WGLChecker};

use super::model::{OneRequest, RequestStep};
use super::{Call, LISTED_BELOW, MAX_VIOLATIONS, Observation, Operation};

/// Maximum operations in the description of a violation.
const MAX_SHOWN: usize = 16;

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Number of checked requests.
    pub objects: usize,
    /// Number of their operations; a list counts once per request that it concerns.
    pub steps: usize,
    /// Descriptions of violations.
    pub violations: Vec<String>,
    /// Number of violations; some may have no description.
    pub count: usize,
}

impl Verdict {
    fn violated(&mut self, violation: impl FnOnce() -> String) {
        self.count += 1;
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(violation());
        }
    }

    /// Whether the history is linearizable.
    #[must_use]
    pub const fn accepted(&self) -> bool {
        self.count == 0
    }
}

/// Checks a history: each request by itself, and the order of revisions.
#[must_use]
pub fn check(operations: &[Operation]) -> Verdict {
    let mut verdict = Verdict::default();
    for (number, steps) in by_request(operations) {
        verdict.objects += 1;
        verdict.steps += steps.len();
        if !WGLChecker::<OneRequest>::is_linearizable(todc_utils::History::from_actions(actions(&steps))) {
            verdict.violated(|| format!("no order explains request {number}: {}", Shown(&steps)));
        }
    }
    revisions(operations, &mut verdict);
    verdict
}

/// One operation on one request, with its time span.
#[derive(Clone, Copy, Debug)]
struct Timed {
    call: Duration,
    answer: Option<Duration>,
    step: RequestStep,
}

/// The history of each request. A list concerns all requests; trivial entries are omitted: absence before the
/// submission or after the cancellation.
fn by_request(operations: &[Operation]) -> BTreeMap<u64, Vec<Timed>> {
    let mut requests: BTreeMap<u64, Vec<Timed>> = BTreeMap::new();
    let mut lists = Vec::new();
    for operation in operations {
        let (call, answer) = (operation.call, operation.answer);
        let (number, step) = match &operation.what {
            Call::Submit(number) if answer.is_some() => (number, RequestStep::Submitted),
            Call::Submit(number) => (number, RequestStep::MaybeSubmitted),
            Call::Cancel(number) if answer.is_some() => (number, RequestStep::Cancelled),
            Call::Cancel(number) => (number, RequestStep::MaybeCancelled),
            // A read without an answer has no effect.
            Call::Read(..) | Call::List(_) if answer.is_none() => continue,
            Call::Read(number, saw) => (number, RequestStep::Read(*saw)),
            Call::List(waiting) => {
                lists.push((call, answer, waiting));
                continue;
            }
        };
        requests.entry(*number).or_default().push(Timed { call, answer, step });
    }
    // A request that is listed and that nobody submitted is an object, too.
    for number in lists.iter().flat_map(|(_, _, waiting)| waiting.iter()) {
        requests.entry(*number).or_default();
    }
    for (number, steps) in requests.range_mut(..LISTED_BELOW) {
        let submitted = steps.iter().filter(|timed| is_submit(timed.step)).map(|timed| timed.call).min();
        let cancelled =
            steps.iter().filter(|timed| timed.step == RequestStep::Cancelled).filter_map(|timed| timed.answer).min();
        for (call, answer, waiting) in &lists {
            let step =
                if waiting.contains(number) { RequestStep::Read(Observation::Waiting) } else { RequestStep::NotListed };
            let before = submitted.is_none_or(|submitted| answer.is_some_and(|answer| answer < submitted));
            let after = cancelled.is_some_and(|cancelled| cancelled < *call);
            if step != RequestStep::NotListed || !(before || after) {
                steps.push(Timed { call: *call, answer: *answer, step });
            }
        }
    }
    requests
}

const fn is_submit(step: RequestStep) -> bool {
    matches!(step, RequestStep::Submitted | RequestStep::MaybeSubmitted)
}

/// Calls and answers in order of time. At equal times calls come first, which makes their operations concurrent.
/// Operations without an answer end after all others.
fn actions(steps: &[Timed]) -> Vec<(usize, Action<RequestStep>)> {
    let mut moments = Vec::with_capacity(2 * steps.len());
    for (number, timed) in steps.iter().enumerate() {
        moments.push((timed.call, 0, number, Action::Call(timed.step)));
        moments.push((timed.answer.unwrap_or(Duration::MAX), 1, number, Action::Response(timed.step)));
    }
    moments.sort_by_key(|(at, kind, number, _)| (*at, *kind, *number));
    moments.into_iter().map(|(_, _, number, action)| (number, action)).collect()
}

/// Checks that no answer has an older revision than an answer before its call.
fn revisions(operations: &[Operation], verdict: &mut Verdict) {
    let with = |read: fn(&Operation) -> Option<Duration>| {
        let mut order: Vec<&Operation> =
            operations.iter().filter(|it| it.revision.is_some() && it.answer.is_some()).collect();
        order.sort_by_key(|operation| read(operation));
        order
    };
    let mut answered = with(|operation| operation.answer).into_iter().peekable();
    let mut newest = 0;
    for operation in with(|operation| Some(operation.call)) {
        while let Some(before) = answered.next_if(|it| it.answer < Some(operation.call)) {
            newest = newest.max(before.revision.unwrap_or(0));
        }
        let revision = operation.revision.unwrap_or(0);
        if revision < newest {
            verdict.violated(|| {
                let at = operation.call.as_secs_f64();
                format!(
                    "at {at:.3} s an answer is of revision {revision}, after one of {newest}: {:?}",
                    Brief(&operation.what)
                )
            });
        }
    }
}

/// Formats a call without the numbers of a list.
struct Brief<'a>(&'a Call);

impl fmt::Debug for Brief<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Call::List(waiting) => write!(f, "list of {}", waiting.len()),
            what => write!(f, "{what:?}"),
        }
    }
}

/// Formats the operations of one request.
struct Shown<'a>(&'a [Timed]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut steps: Vec<&Timed> = self.0.iter().collect();
        steps.sort_by_key(|timed| timed.call);
        // Omits a read with the same result as the one before.
        steps.dedup_by(|later, earlier| later.step == earlier.step);
        for (index, timed) in steps.iter().take(MAX_SHOWN).enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{:.3} to ", timed.call.as_secs_f64())?;
            match timed.answer {
                Some(answer) => write!(f, "{:.3} s: {:?}", answer.as_secs_f64(), timed.step)?,
                None => write!(f, "?: {:?}", timed.step)?,
            }
        }
        Ok(())
    }
}

/// Lost and resurrected requests of one member at the end: it must have every accepted request that no client tried to
/// cancel, and no cancelled one.
#[must_use]
pub fn account(operations: &[Operation], waiting: &BTreeSet<u64>) -> (Vec<u64>, Vec<u64>) {
    let (mut accepted, mut touched, mut cancelled) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for operation in operations {
        match (&operation.what, operation.answer) {
            (Call::Submit(number), Some(_)) => {
                accepted.insert(*number);
            }
            (Call::Cancel(number), answer) => {
                touched.insert(*number);
                cancelled.extend(answer.map(|_| *number));
            }
            _ => {}
        }
    }
    let lost = accepted.iter().filter(|number| !touched.contains(number) && !waiting.contains(number));
    (lost.copied().collect(), cancelled.intersection(waiting).copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An operation from and to these milliseconds.
    fn operation(call: u64, answer: Option<u64>, what: Call) -> Operation {
        Operation { call: Duration::from_millis(call), answer: answer.map(Duration::from_millis), what, revision: None }
    }

    fn list(call: u64, answer: u64, waiting: &[u64]) -> Operation {
        operation(call, Some(answer), Call::List(waiting.iter().copied().collect()))
    }

    fn accepts(operations: &[Operation]) -> bool {
        check(operations).accepted()
    }

    #[test]
    fn a_good_history_is_accepted() {
        let verdict = check(&[
            operation(0, Some(10), Call::Submit(1)),
            // While the submission is on its way a reader may see it or not.
            list(2, 4, &[]),
            list(3, 9, &[1]),
            operation(5, Some(15), Call::Submit(2)),
            operation(20, Some(21), Call::Read(1, Observation::Waiting)),
            operation(30, Some(40), Call::Cancel(1)),
            list(35, 36, &[1, 2]),
            list(37, 39, &[2]),
            operation(50, Some(51), Call::Read(1, Observation::Cancelled)),
            operation(60, Some(61), Call::Read(1, Observation::Nothing)),
        ]);
        assert!(verdict.accepted(), "{verdict:?}");
        assert_eq!(verdict.objects, 2);
    }

    #[test]
    fn a_stale_read_is_rejected() {
        let submitted = operation(0, Some(10), Call::Submit(1));
        assert!(!accepts(&[submitted.clone(), list(11, 12, &[])]));
        assert!(!accepts(&[submitted.clone(), operation(11, Some(12), Call::Read(1, Observation::Nothing))]));
        let cancelled = operation(20, Some(30), Call::Cancel(1));
        assert!(!accepts(&[submitted.clone(), cancelled.clone(), list(31, 32, &[1])]));
        // Once a read returned it, a later read must too, although both overlap the submission.
        assert!(!accepts(&[submitted.clone(), list(1, 3, &[1]), list(4, 6, &[])]));
        assert!(accepts(&[submitted, list(1, 3, &[]), list(4, 6, &[1])]));
    }

    #[test]
    fn a_lost_write_is_rejected_by_readers_and_by_the_accounts() {
        let history =
            [operation(0, Some(10), Call::Submit(1)), list(11, 12, &[1]), operation(20, Some(30), Call::Submit(2))];
        assert_eq!(account(&history, &BTreeSet::from([1, 2])), (vec![], vec![]));
        assert_eq!(account(&history, &BTreeSet::from([2])), (vec![1], vec![]));
        let read = operation(40, Some(41), Call::Read(1, Observation::Nothing));
        assert!(!accepts(&[&history[..], &[read]].concat()));
        assert!(!accepts(&[&history[..], &[list(40, 41, &[2])]].concat()));
    }

    #[test]
    fn a_cancellation_that_is_undone_is_rejected_by_readers_and_by_the_accounts() {
        let history = [operation(0, Some(10), Call::Submit(1)), operation(20, Some(30), Call::Cancel(1))];
        assert_eq!(account(&history, &BTreeSet::new()), (vec![], vec![]));
        assert_eq!(account(&history, &BTreeSet::from([1])), (vec![], vec![1]));
        assert!(!accepts(&[&history[..], &[operation(40, Some(41), Call::Read(1, Observation::Waiting))]].concat()));
    }

    #[test]
    fn a_call_without_an_answer_may_take_effect_early_late_or_never() {
        let unknown = operation(0, None, Call::Submit(1));
        assert!(accepts(&[unknown.clone(), list(10, 11, &[])]));
        assert!(accepts(&[unknown.clone(), list(10, 11, &[1])]));
        assert!(accepts(&[unknown.clone(), list(10, 11, &[]), list(20, 21, &[1])]));
        assert!(!accepts(&[unknown.clone(), list(10, 11, &[1]), list(20, 21, &[])]));
        assert_eq!(account(&[unknown], &BTreeSet::new()), (vec![], vec![]));
        let cancelled = [operation(0, Some(5), Call::Submit(1)), operation(6, None, Call::Cancel(1))];
        assert!(accepts(&[&cancelled[..], &[list(10, 11, &[1]), list(20, 21, &[])]].concat()));
        assert!(!accepts(&[&cancelled[..], &[list(10, 11, &[]), list(20, 21, &[1])]].concat()));
        // Before its call nothing can have happened.
        assert!(!accepts(&[operation(10, None, Call::Submit(1)), list(5, 6, &[1])]));
    }

    #[test]
    fn requests_that_nobody_submitted_or_cancelled_are_rejected() {
        assert!(!accepts(&[list(0, 1, &[7])]));
        let ended = operation(20, Some(21), Call::Read(1, Observation::EndedByItself));
        assert!(!accepts(&[operation(0, Some(10), Call::Submit(1)), ended]));
    }

    #[test]
    fn revisions_never_go_back_in_time() {
        let at = |call, answer, revision| Operation {
            revision: Some(revision),
            ..operation(call, Some(answer), Call::List(BTreeSet::new()))
        };
        assert!(accepts(&[at(0, 10, 5), at(5, 12, 4), at(13, 14, 5), at(15, 16, 9)]));
        assert!(!accepts(&[at(0, 10, 5), at(11, 12, 4)]));
    }
}
