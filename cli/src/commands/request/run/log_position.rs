//! How far a log was printed, to go on there after its stream broke. Logs have no offsets: one is read from its beginning
//! again, and its printed part is skipped if it is still the same.

use std::collections::VecDeque;

use jiff::Timestamp;

/// Bytes by which the printed part is recognised.
const TAIL: usize = 256;

#[derive(Debug, Default)]
pub(super) struct LogPosition {
    printed: u64,
    tail: VecDeque<u8>,
    /// When something was printed last.
    last: Option<Timestamp>,
    /// The log was rotated, so that its beginning is not that of the output any more.
    is_lost: bool,
}

impl LogPosition {
    /// From when to read the log; `None`: from its beginning.
    pub(super) fn since(&self) -> Option<Timestamp> {
        self.last.filter(|_| self.is_lost)
    }

    /// Notes what was printed.
    pub(super) fn printed(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.printed += bytes.len() as u64;
        keep_tail(&mut self.tail, bytes);
        self.last = Some(Timestamp::now());
    }

    /// From now on the log is read by time: lines of the last second may be printed twice.
    pub(super) fn lose(&mut self) {
        self.is_lost = true;
    }

    /// The printed part, which comes again.
    pub(super) fn again(&self) -> Again {
        let left = if self.is_lost { 0 } else { self.printed };
        Again { left, seen: VecDeque::new(), tail: self.tail.clone() }
    }
}

fn keep_tail(tail: &mut VecDeque<u8>, bytes: &[u8]) {
    tail.extend(&bytes[bytes.len().saturating_sub(TAIL)..]);
    tail.drain(..tail.len().saturating_sub(TAIL));
}

/// What is left to skip of a log.
pub(super) struct Again {
    left: u64,
    seen: VecDeque<u8>,
    tail: VecDeque<u8>,
}

impl Again {
    /// Whether there is more to skip.
    pub(super) const fn is_open(&self) -> bool {
        self.left > 0
    }

    /// The new part of `bytes`; `None` if the log is another than before.
    pub(super) fn skip<'a>(&mut self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        if self.left == 0 {
            return Some(bytes);
        }
        let skipped = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        let (old, new) = bytes.split_at(skipped);
        keep_tail(&mut self.seen, old);
        self.left -= skipped as u64;
        (self.left > 0 || self.seen == self.tail).then_some(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_goes_on_after_its_printed_part() {
        let mut position = LogPosition::default();
        assert_eq!(position.again().skip(b"one\n"), Some(&b"one\n"[..]));
        position.printed(b"one\n");
        let long = "x".repeat(1_000);
        position.printed(long.as_bytes());
        let whole = format!("one\n{long}more");
        let mut again = position.again();
        assert_eq!(again.skip(&whole.as_bytes()[..500]), Some(&b""[..]));
        assert!(again.is_open());
        assert_eq!(again.skip(&whole.as_bytes()[500..]), Some(&b"more"[..]));
        assert_eq!(position.since(), None);
    }

    #[test]
    fn a_rotated_log_is_noticed() {
        let mut position = LogPosition::default();
        position.printed(b"one\ntwo\n");
        assert_eq!(position.again().skip(b"three\nfour\n"), None);
        position.lose();
        assert!(position.since().is_some());
        assert_eq!(position.again().skip(b"three\n"), Some(&b"three\n"[..]));
    }
}
