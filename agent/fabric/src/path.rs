//! Tracks the other side's endpoint, and when to start the next handshake.
//!
//! A peer is reached at its authenticated endpoint once there is one. Before that, and whenever it is silent, the
//! candidates of its key bundle are tried in turn. Pure: every method takes the time.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Pause between the first handshake attempts. Two attempts may be in flight, so a round trip of a second still
/// succeeds.
const FAST_RETRY: Duration = Duration::from_millis(500);
/// Rounds over all candidates at the fast pace; then the pause doubles.
const FAST_ROUNDS: u32 = 3;
/// The longest pause, WireGuard's own (REKEY_TIMEOUT).
const SLOW_RETRY: Duration = Duration::from_secs(5);
/// How long the sender of an accepted initiation may take to finish the handshake.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);
/// If data gets no answer for this long, the session is probably dead: the other side restarted or moved. WireGuard
/// alone would wait 15 s. An unneeded handshake is cheap, and two seconds end before TCP's third attempt to open a
/// connection.
const UNANSWERED: Duration = Duration::from_secs(2);

/// The endpoint of one peer, and its handshake attempts.
#[derive(Debug)]
pub(super) struct Path {
    candidates: Vec<SocketAddr>,
    endpoint: Option<SocketAddr>,
    next_candidate: usize,
    attempts: u32,
    next_attempt: Instant,
    last_heard: Instant,
    unanswered_since: Option<Instant>,
    longest_silence: Duration,
}

impl Path {
    /// A path with its first attempt at `first_attempt`. Both sides send keepalives, so a peer counts as silent a
    /// little after two of them are due.
    pub(super) fn new(candidates: Vec<SocketAddr>, keepalive: Duration, first_attempt: Instant) -> Self {
        Self {
            candidates,
            endpoint: None,
            next_candidate: 0,
            attempts: 0,
            next_attempt: first_attempt,
            last_heard: first_attempt,
            unanswered_since: None,
            longest_silence: keepalive * 2 + SLOW_RETRY,
        }
    }

    /// Where an authenticated packet last came from.
    pub(super) fn endpoint(&self) -> Option<SocketAddr> {
        self.endpoint
    }

    pub(super) fn candidates(&self) -> &[SocketAddr] {
        &self.candidates
    }

    pub(super) fn set_candidates(&mut self, candidates: Vec<SocketAddr>, now: Instant) {
        self.candidates = candidates;
        self.next_candidate = 0;
        self.attempts = 0;
        self.next_attempt = now;
    }

    /// An authenticated packet of a session came from `from`.
    pub(super) fn heard(&mut self, from: SocketAddr, now: Instant) {
        self.endpoint = Some(from);
        self.last_heard = now;
        self.unanswered_since = None;
        self.next_candidate = 0;
        self.attempts = 0;
        self.next_attempt = now;
    }

    /// The peer began a handshake. Its address counts only once the handshake is complete, because an initiation could
    /// be a replay.
    pub(super) fn asked(&mut self, now: Instant) {
        self.next_attempt = self.next_attempt.max(now + FINISH_TIMEOUT);
    }

    /// A packet with content was sent.
    pub(super) fn sent(&mut self, now: Instant) {
        self.unanswered_since.get_or_insert(now);
    }

    /// The address to send a handshake initiation to now, if one is due although there is a session: the peer is silent.
    pub(super) fn attempt_if_silent(&mut self, now: Instant) -> Option<SocketAddr> {
        if self.is_silent(now) { self.attempt(now) } else { None }
    }

    /// The address to send a handshake initiation to now, if one is due; for a path without a session.
    pub(super) fn attempt(&mut self, now: Instant) -> Option<SocketAddr> {
        if now < self.next_attempt {
            return None;
        }
        let known = self.endpoint.into_iter();
        let others = self.candidates.iter().copied().filter(|candidate| Some(*candidate) != self.endpoint);
        let all: Vec<_> = known.chain(others).collect();
        let target = *all.get(self.next_candidate % all.len().max(1))?;
        self.next_candidate = (self.next_candidate + 1) % all.len();
        self.next_attempt = now + self.pause(all.len());
        self.attempts = self.attempts.saturating_add(1);
        Some(target)
    }

    fn is_silent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last_heard) > self.longest_silence
            || self.unanswered_since.is_some_and(|since| now.saturating_duration_since(since) > UNANSWERED)
    }

    fn pause(&self, targets: usize) -> Duration {
        let fast = FAST_ROUNDS.saturating_mul(u32::try_from(targets).unwrap_or(u32::MAX));
        let doublings = self.attempts.saturating_sub(fast).min(4);
        (FAST_RETRY * (1 << doublings)).min(SLOW_RETRY)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    const KEEPALIVE: Duration = Duration::from_secs(20);

    #[test]
    fn candidates_are_tried_in_turn_and_then_more_slowly() {
        let start = Instant::now();
        let mut path = Path::new(vec![address(1), address(2)], KEEPALIVE, start);
        let mut asked = Vec::new();
        for tick in 0..1200u32 {
            let now = start + Duration::from_millis(100) * tick;
            asked.extend(path.attempt(now).map(|target| (tick, target.port())));
        }
        let ports: Vec<_> = asked.iter().take(4).map(|(_, port)| *port).collect();
        assert_eq!(ports, [1, 2, 1, 2]);
        assert_eq!(asked[1].0 - asked[0].0, 5);
        let last = asked.last_chunk::<2>().unwrap();
        assert_eq!(last[1].0 - last[0].0, 50);
    }

    #[test]
    fn a_session_that_answers_is_left_alone() {
        let start = Instant::now();
        let mut path = Path::new(vec![address(1)], KEEPALIVE, start);
        path.heard(address(9), start);
        assert_eq!(path.endpoint(), Some(address(9)));
        assert_eq!(path.attempt_if_silent(start + KEEPALIVE), None);
    }

    #[test]
    fn data_without_an_answer_asks_the_last_endpoint_first() {
        let start = Instant::now();
        let mut path = Path::new(vec![address(1)], KEEPALIVE, start);
        path.heard(address(9), start);
        path.sent(start);
        assert_eq!(path.attempt_if_silent(start + UNANSWERED), None);
        let late = start + UNANSWERED + Duration::from_millis(1);
        assert_eq!(path.attempt_if_silent(late), Some(address(9)));
        assert_eq!(path.attempt_if_silent(late + FAST_RETRY), Some(address(1)));
        path.heard(address(9), late + FAST_RETRY);
        assert_eq!(path.attempt_if_silent(late + FAST_RETRY * 2), None);
    }

    #[test]
    fn a_silent_peer_is_asked_again_even_when_idle() {
        let start = Instant::now();
        let mut path = Path::new(Vec::new(), KEEPALIVE, start);
        assert_eq!(path.attempt(start), None);
        path.heard(address(9), start);
        assert_eq!(path.attempt_if_silent(start + KEEPALIVE * 3), Some(address(9)));
    }

    #[test]
    fn an_initiation_of_the_peer_gives_it_time_to_finish() {
        let start = Instant::now();
        let mut path = Path::new(vec![address(1)], KEEPALIVE, start);
        path.asked(start);
        assert_eq!(path.attempt(start + FAST_RETRY), None);
        assert_eq!(path.attempt(start + FINISH_TIMEOUT), Some(address(1)));
    }
}
