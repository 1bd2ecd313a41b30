//! When people are warned that a lease ends: at a fifth of its term, and at five minutes.

/// The first warning comes when this part of the term is left.
const WARN_AT_PART: u64 = 5;
/// The last warning comes when this is left, or with the first one if that is later.
const LAST_WARNING_MS: u64 = 5 * 60_000;

/// How soon a lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Less than a fifth of the term is left.
    Soon,
    /// Less than five minutes are left.
    VerySoon,
}

/// The warning that is due, and when the next one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndWarning {
    /// Due now.
    pub(crate) due: Option<Urgency>,
    /// Time of the next change, in milliseconds since 1970.
    pub(crate) next_ms: Option<u64>,
}

/// The warning about a lease that ends at `expires_at_ms` after a term of `term_ms`.
pub(crate) fn warning(expires_at_ms: u64, term_ms: u64, now_ms: u64) -> EndWarning {
    let fifth = expires_at_ms.saturating_sub(term_ms / WARN_AT_PART);
    // Five minutes before the end of a shorter lease, it had not begun.
    let last = if term_ms > LAST_WARNING_MS { expires_at_ms.saturating_sub(LAST_WARNING_MS) } else { fifth };
    let (first, second) = (fifth.min(last), fifth.max(last));
    let due = if now_ms >= second {
        Some(Urgency::VerySoon)
    } else if now_ms >= first {
        Some(Urgency::Soon)
    } else {
        None
    };
    EndWarning { due, next_ms: [first, second].into_iter().find(|at| *at > now_ms) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;

    #[test]
    fn a_lease_of_an_hour_warns_at_twelve_and_at_five_minutes() {
        let left = |minutes: u64| warning(100 * MINUTE, 60 * MINUTE, (100 - minutes) * MINUTE);
        assert_eq!(left(13), EndWarning { due: None, next_ms: Some(88 * MINUTE) });
        assert_eq!(left(12), EndWarning { due: Some(Urgency::Soon), next_ms: Some(95 * MINUTE) });
        assert_eq!(left(5), EndWarning { due: Some(Urgency::VerySoon), next_ms: None });
    }

    #[test]
    fn a_short_lease_is_not_announced_as_ending_from_its_start() {
        let left = |seconds: u64| warning(1_000_000, 60_000, 1_000_000 - seconds * 1_000).due;
        assert_eq!((left(13), left(12)), (None, Some(Urgency::VerySoon)));
    }
}
