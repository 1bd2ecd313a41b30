//! Short reasons why requests wait, from the broker's explanations; these are expensive, so they are requested rarely.

use std::collections::BTreeMap;

use comity_proto::v1;

use super::snapshot::RequestFacts;
use crate::crd::time;

/// Shortest pause between two explanations of one request.
pub(crate) const EVERY_MS: u64 = 60_000;
/// Pause before the first: most requests are placed sooner.
const AFTER_MS: u64 = 1_000;
/// Requests explained in one round.
const EXPLAINED_PER_ROUND: usize = 16;
/// Donors named in a summary.
const MAX_DONORS: usize = 4;
/// Characters of one donor's reason, and of all.
const REASON_CHARS: usize = 120;
const ALL_CHARS: usize = 480;

/// Summarizes an explanation: the first reason of each donor that does not fit, after the broker's own summary if that
/// says more.
pub(crate) fn summarize(answer: &v1::ExplainRequestResponse) -> String {
    let against: Vec<String> = answer
        .donors
        .iter()
        .filter(|verdict| !verdict.fits && !verdict.reason.is_empty())
        .map(|verdict| format!("{}: {}", verdict.donor, cut(&verdict.reason, REASON_CHARS)))
        .collect();
    let mut parts: Vec<String> = expected(answer).into_iter().collect();
    // "not placed" repeats the donors' reasons; a start window or a queue position adds to them.
    if against.is_empty() || !answer.summary.starts_with("not placed") {
        parts.extend(Some(answer.summary.clone()).filter(|summary| !summary.is_empty()));
    }
    parts.extend(against.iter().take(MAX_DONORS).cloned());
    let more = against.len().saturating_sub(MAX_DONORS);
    if more > 0 {
        parts.push(format!("and {more} more donors"));
    }
    cut(&parts.join("; "), ALL_CHARS)
}

/// When it is expected to start, by the current plan. Where a donor has room now, the summary says what it waits for.
fn expected(answer: &v1::ExplainRequestResponse) -> Option<String> {
    let has_room = answer.donors.iter().any(|verdict| verdict.fits);
    let position = answer.position.as_ref().filter(|position| !position.too_late && !has_room)?;
    let at = time(position.earliest_ms)?;
    Some(format!("expected by {at} at {}, unless leases are renewed", position.earliest_donor))
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(most - 1).collect();
    short.push('…');
    short
}

/// Reasons of waiting requests.
#[derive(Debug, Default)]
pub(super) struct WaitReasons {
    /// By request: the reason, and when the next explanation is due.
    known: BTreeMap<String, (String, u64)>,
}

impl WaitReasons {
    /// Sets the reasons as messages of waiting requests; forgets all others.
    pub(super) fn apply_to<'a>(
        &mut self,
        waiting: impl Iterator<Item = (&'a String, &'a mut RequestFacts)>,
        now_ms: u64,
    ) {
        let mut known = std::mem::take(&mut self.known);
        for (id, request) in waiting {
            let (reason, next) = known.remove(id).unwrap_or_else(|| (String::new(), now_ms.saturating_add(AFTER_MS)));
            if !reason.is_empty() {
                request.message.clone_from(&reason);
            }
            self.known.insert(id.clone(), (reason, next));
        }
    }

    /// Requests to explain now; marks them as asked.
    pub(super) fn due(&mut self, now_ms: u64) -> Vec<String> {
        let due = self.known.iter_mut().filter(|(_, (_, next))| *next <= now_ms).take(EXPLAINED_PER_ROUND);
        let asked = due.map(|(id, (_, next))| {
            *next = now_ms.saturating_add(EVERY_MS);
            id.clone()
        });
        asked.collect()
    }

    pub(super) fn take(&mut self, request: &str, answer: &v1::ExplainRequestResponse) {
        if let Some((reason, _)) = self.known.get_mut(request) {
            *reason = summarize(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(donor: &str, reason: &str) -> v1::DonorVerdict {
        v1::DonorVerdict {
            donor: donor.to_owned(),
            fits: reason.is_empty(),
            reason: reason.to_owned(),
            ..v1::DonorVerdict::default()
        }
    }

    fn answer(summary: &str, donors: Vec<v1::DonorVerdict>) -> v1::ExplainRequestResponse {
        v1::ExplainRequestResponse { summary: summary.to_owned(), donors, ..v1::ExplainRequestResponse::default() }
    }

    #[test]
    fn each_donor_says_its_first_reason() {
        let donors = vec![verdict("campus", "no agreement covers it"), verdict("institute", "2 of 8 GPUs are free")];
        let text = summarize(&answer("not placed: none of 2 donors can serve it now", donors.clone()));
        assert_eq!(text, "campus: no agreement covers it; institute: 2 of 8 GPUs are free");
        let early = summarize(&answer("its start window has not opened; not placed: none of 2", donors));
        assert!(early.starts_with("its start window has not opened; ") && early.contains("campus: "), "{early}");
        let fits = summarize(&answer("fits on campus; it must not delay req-1", vec![verdict("campus", "")]));
        assert_eq!(fits, "fits on campus; it must not delay req-1");
    }

    #[test]
    fn the_expected_start_comes_first() {
        let position = v1::QueuePosition {
            earliest_ms: 1_772_395_200_000,
            earliest_donor: "campus".to_owned(),
            ..v1::QueuePosition::default()
        };
        let waiting = answer("not placed: none of 1 donors can serve it now", vec![verdict("campus", "no room")]);
        let text = summarize(&v1::ExplainRequestResponse { position: Some(position.clone()), ..waiting.clone() });
        assert_eq!(text, "expected by 2026-03-01T20:00:00Z at campus, unless leases are renewed; campus: no room");
        let now = position.clone();
        let position = v1::QueuePosition { too_late: true, ..position };
        assert_eq!(summarize(&v1::ExplainRequestResponse { position: Some(position), ..waiting }), "campus: no room");
        let fits = answer("fits on campus; it must not delay req-1", vec![verdict("campus", "")]);
        let text = summarize(&v1::ExplainRequestResponse { position: Some(now), ..fits });
        assert_eq!(text, "fits on campus; it must not delay req-1", "no time that changes with each answer");
    }

    #[test]
    fn summaries_are_bounded() {
        let many = (0..50).map(|n| verdict(&format!("donor-{n}"), &"é".repeat(900))).collect();
        let text = summarize(&answer(&"s".repeat(9_000), many));
        assert!(text.chars().count() <= ALL_CHARS && text.ends_with('…'), "{text}");
        let many = (0..6).map(|n| verdict(&format!("donor-{n}"), "no room")).collect();
        assert!(summarize(&answer("not placed: none", many)).ends_with("donor-3: no room; and 2 more donors"));
    }

    #[test]
    fn the_first_explanation_comes_after_a_second_and_then_one_a_minute() {
        let mut requests = BTreeMap::from([("req-1".to_owned(), RequestFacts::default())]);
        let mut reasons = WaitReasons::default();
        reasons.apply_to(requests.iter_mut(), 0);
        assert!(reasons.due(999).is_empty());
        assert_eq!(reasons.due(1_000), ["req-1"]);
        assert!(reasons.due(60_999).is_empty());
        reasons.take("req-1", &answer("not placed: none", vec![verdict("campus", "no room")]));
        reasons.apply_to(requests.iter_mut(), 2_000);
        assert_eq!(requests["req-1"].message, "campus: no room");
        assert_eq!(reasons.due(61_000), ["req-1"]);
        reasons.apply_to(std::iter::empty(), 62_000);
        assert!(reasons.known.is_empty());
    }
}
