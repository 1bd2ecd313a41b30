//! Groups of brokers in simulated time: monotonic clocks run alike, wall clocks jump, answers take their time.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const STEP: u64 = 500;
const HOUR: u64 = 3_600_000;
/// Ten years.
const LARGEST_JUMP: i64 = 315_360_000_000;
/// Wall time at the start.
const BEGIN: u64 = 1_795_000_000_000;
/// Longest round trip.
const LONGEST_WAY: u64 = 20;

struct Member {
    keeper: Timekeeper,
    /// How far its wall clock is off.
    wall_off: i64,
    up: bool,
}

struct SimulatedGroup {
    now: u64,
    members: BTreeMap<u64, Member>,
    voters: BTreeSet<u64>,
    leader: Option<u64>,
    term: u64,
    /// Highest stamp of any leader.
    stamped: u64,
    random: u64,
}

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl SimulatedGroup {
    fn new(size: u64) -> Self {
        let keeper = |id| Timekeeper::new(id, at(1_000), LogClock::default(), None);
        let members = (1..=size).map(|id| (id, Member { keeper: keeper(id), wall_off: 0, up: true })).collect();
        let voters = (1..=size).collect();
        Self { now: 1_000, members, voters, leader: None, term: 0, stamped: 0, random: 7 }
    }

    /// True time, as a correct wall clock shows it.
    fn truth(&self) -> u64 {
        BEGIN + self.now
    }

    fn way(&mut self) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % (LONGEST_WAY + 1)
    }

    fn with<T>(&mut self, id: u64, f: impl FnOnce(&mut Timekeeper, &Moment<'_>) -> T) -> T {
        let truth = self.truth();
        let member = self.members.get_mut(&id).expect("a member");
        let wall_ms = truth.saturating_add_signed(member.wall_off);
        let moment =
            Moment { now: at(self.now), wall_ms, voters: &self.voters, shift_ms: 0, log_time_ms: self.stamped };
        f(&mut member.keeper, &moment)
    }

    fn ask(&mut self, asking: u64, asked: u64) {
        let now = at(self.now);
        if !self.members[&asked].up {
            return self.with(asking, |keeper, at| keeper.failed(asked, at.now));
        }
        let way = self.way();
        let other = &self.members[&asked];
        let log_ms = other.keeper.log_ms(now);
        let reading = Reading {
            // The exchange takes no time here; the network's delay is only claimed.
            sent: now.saturating_sub(at(way)),
            received: now,
            wall_ms: self.truth().saturating_add_signed(other.wall_off),
            log_ms,
            led: other.keeper.led().map(|led| match led {
                Led::Ago { .. } => Led::Ago { ago: led.ago(now, 0), as_of: now.saturating_sub(at(way)) },
                before => before,
            }),
            leads: other.keeper.started().is_some(),
        };
        let leader = self.leader;
        self.with(asking, |keeper, _| keeper.answered(asked, reading, leader));
    }

    fn up(&self) -> Vec<u64> {
        self.members.iter().filter(|(_, member)| member.up).map(|(id, _)| *id).collect()
    }

    fn elect(&mut self, id: u64) -> ClockStarted {
        self.term += 1;
        let term = self.term;
        if let Some(old) = self.leader.replace(id).filter(|old| *old != id && self.members[old].up) {
            self.with(old, |keeper, at| keeper.follows(at.now));
        }
        self.with(id, |keeper, at| keeper.leads(tenure(term), at.now));
        let others: Vec<u64> = self.members.keys().copied().filter(|other| *other != id).collect();
        for other in others {
            self.ask(id, other);
        }
        let start = self.with(id, |keeper, at| keeper.start(at, StateProgress::CaughtUp));
        let ClockStart::Done(started) = start else { panic!("{start:?}") };
        self.with(id, |keeper, _| keeper.term_began(tenure(term)));
        started
    }

    /// Half a second; the leader's stamp at its end, and how each broker's clocks stand.
    fn step(&mut self) -> (Option<u64>, BTreeMap<u64, Offsets>) {
        self.now += STEP;
        let up = self.up();
        for asking in up.clone() {
            for asked in self.members.keys().copied().collect::<Vec<_>>() {
                if asked != asking {
                    self.ask(asking, asked);
                }
            }
        }
        let leader = self.leader.filter(|id| self.members[id].up);
        let majority = up.len() * 2 > self.members.len();
        let offsets = up.iter().map(|id| {
            let ago = (leader == Some(*id) && majority).then_some(Duration::ZERO);
            (*id, self.with(*id, |keeper, at| keeper.look(at, ago)))
        });
        let offsets = offsets.collect();
        let stamp = leader.and_then(|id| self.with(id, |keeper, at| keeper.log_ms(at.now)));
        self.stamped = self.stamped.max(stamp.unwrap_or_default());
        (stamp, offsets)
    }

    fn crash(&mut self, id: u64) {
        self.members.get_mut(&id).expect("a member").up = false;
        if self.leader == Some(id) {
            self.leader = None;
        }
    }

    /// Starts again with what was saved, or nothing.
    fn start(&mut self, id: u64, clock: LogClock, led: Option<Led>) {
        let now = at(self.now);
        let member = self.members.get_mut(&id).expect("a member");
        (member.keeper, member.up) = (Timekeeper::new(id, now, clock, led), true);
    }
}

fn three() -> SimulatedGroup {
    let mut group = SimulatedGroup::new(3);
    group.elect(1);
    group
}

/// Maximum offset of log time from true time, `passed` after an exact one and after `changes` changes of the leader.
fn bound(passed: u64, changes: u64) -> u64 {
    passed / 100 + (changes + 1) * (LONGEST_WAY + 2)
}

#[test]
fn no_jump_of_wall_clocks_moves_log_time_by_more_than_the_bound_within_an_hour() {
    let jumps = [HOUR as i64 * 2, -(HOUR as i64) * 2, HOUR as i64 * 25, -(HOUR as i64) * 25, LARGEST_JUMP];
    for victims in [&[2][..], &[1], &[1, 2], &[2, 3], &[1, 2, 3]] {
        for jump in jumps {
            let mut group = three();
            for _ in 0..20 {
                group.step();
            }
            for id in victims {
                group.members.get_mut(id).expect("a member").wall_off = jump;
            }
            let begin = group.now;
            let mut last = 0;
            while group.now < begin + HOUR {
                let stamp = group.step().0.expect("a leader");
                assert!(stamp >= last);
                last = stamp;
                let allowed = if victims.len() > 1 { bound(group.now - begin, 0) } else { LONGEST_WAY + 2 };
                let off = stamp.abs_diff(group.truth());
                assert!(off <= allowed, "{off} ms off, {} ms after {victims:?} jumped by {jump}", group.now - begin);
            }
        }
    }
}

#[test]
fn a_broker_whose_wall_clock_jumps_knows_it_and_whom_it_may_hand_over_to() {
    let mut group = three();
    group.step();
    group.members.get_mut(&1).expect("a member").wall_off = 2 * HOUR as i64;
    let (_, offsets) = group.step();
    assert!(offsets[&1].is_off && !offsets[&2].is_off && !offsets[&3].is_off, "{offsets:?}");
    assert!(offsets[&1].wall_ms.is_some_and(|off| off.abs_diff(2 * HOUR as i64) < 100), "{offsets:?}");
    let reference = offsets[&1].reference_ms.expect("a majority");
    let heirs = group.with(1, |keeper, at| keeper.right(at, reference));
    assert_eq!(heirs, BTreeSet::from([2, 3]));
    group.members.get_mut(&1).expect("a member").wall_off = 4_000;
    assert!(group.step().1[&1].is_off, "not before half of the bound");
    group.members.get_mut(&1).expect("a member").wall_off = 2_000;
    assert!(!group.step().1[&1].is_off);
}

#[test]
fn a_new_leader_goes_on_where_the_old_one_was() {
    let mut group = three();
    for round in 0..30 {
        group.step();
        let stamp = group.step().0.expect("a leader");
        let dead = group.leader.expect("a leader");
        group.crash(dead);
        group.now += 700;
        let next = if dead == 3 { 1 } else { dead + 1 };
        let started = group.elect(next);
        assert!(started.outage.is_some_and(|outage| outage < at(1_500)), "{started:?}");
        let after = group.with(next, |keeper, at| keeper.log_ms(at.now)).expect("it leads");
        let off = after.abs_diff(stamp + 700);
        assert!(off <= LONGEST_WAY + 2, "{off} ms off in round {round}");
        group.start(dead, LogClock::default(), None);
        group.step();
    }
    let off = group.stamped.abs_diff(group.truth());
    assert!(off <= bound(group.now, 30), "{off}");
}

#[test]
fn an_outage_is_measured_though_all_wall_clocks_jump_meanwhile() {
    let mut group = three();
    for _ in 0..10 {
        group.step();
    }
    let stamp = group.stamped;
    group.crash(1);
    group.crash(2);
    for _ in 0..120 {
        group.step();
    }
    for member in group.members.values_mut() {
        member.wall_off = -25 * HOUR as i64;
    }
    group.start(2, LogClock::default(), None);
    let started = group.elect(3);
    let outage = started.outage.expect("broker 3 was there");
    assert!(outage >= at(60_000) && outage <= at(61_000), "{outage:?}");
    let after = group.with(3, |keeper, at| keeper.log_ms(at.now)).expect("it leads");
    assert!(after.abs_diff(stamp + 60_000) <= LONGEST_WAY + 2);
}

#[test]
fn a_group_that_started_from_nothing_takes_the_median_of_wall_clocks_and_never_goes_back() {
    let mut group = SimulatedGroup::new(3);
    group.members.get_mut(&1).expect("a member").wall_off = LARGEST_JUMP;
    group.elect(1);
    let stamp = group.step().0.expect("a leader");
    assert!(stamp.abs_diff(group.truth()) <= LONGEST_WAY + 2);
    for id in 1..=3 {
        group.crash(id);
        group.members.get_mut(&id).expect("a member").wall_off = -2 * HOUR as i64;
    }
    let stamped = group.stamped;
    for id in 1..=3 {
        group.start(id, LogClock::default(), Some(Led::LogClock(stamped - 7_000)));
    }
    let started = group.elect(2);
    assert_eq!(started.outage, Some(at(7_000)));
    assert_eq!(group.with(2, |keeper, at| keeper.log_ms(at.now)), Some(stamped));
}

#[test]
fn a_leader_waits_for_a_majority_and_with_wall_clocks_alone_for_everybody() {
    let mut group = SimulatedGroup::new(3);
    group.leader = Some(1);
    group.with(1, |keeper, at| keeper.leads(tenure(1), at.now));
    assert_eq!(group.with(1, |keeper, at| keeper.start(at, StateProgress::CaughtUp)), ClockStart::Waits);
    group.ask(1, 2);
    assert_eq!(
        group.with(1, |keeper, at| keeper.start(at, StateProgress::CaughtUp)),
        ClockStart::Waits,
        "broker 3 may answer yet"
    );
    group.crash(3);
    group.ask(1, 3);
    assert_eq!(group.with(1, |keeper, at| keeper.start(at, StateProgress::Behind)), ClockStart::NeedsState);
    assert!(matches!(group.with(1, |keeper, at| keeper.start(at, StateProgress::CaughtUp)), ClockStart::Done(_)));
}

#[test]
fn a_term_that_has_not_begun_is_not_the_end_of_an_outage() {
    let mut group = three();
    group.step();
    let led_at = group.now;
    group.now += 60_000;
    group.term += 1;
    let term = group.term;
    group.with(1, |keeper, at| keeper.follows(at.now));
    group.leader = Some(2);
    group.with(2, |keeper, at| keeper.leads(tenure(term), at.now));
    group.step();
    assert!(matches!(group.with(2, |keeper, at| keeper.start(at, StateProgress::CaughtUp)), ClockStart::Done(_)));
    group.step();
    // It dies before `BeginTerm` was stored: the next one still knows of the outage.
    group.crash(2);
    group.now += 1_000;
    let outage = group.elect(3).outage.expect("known");
    assert!(outage.as_millis().abs_diff(u128::from(group.now - led_at)) <= 1_000, "{outage:?}");
}

/// The first tenure of a broker in a term.
fn tenure(term: u64) -> Tenure {
    Tenure { term, number: 1 }
}

#[test]
fn a_leader_that_is_back_in_its_term_begins_another_tenure_and_counts_the_outage() {
    let mut group = three();
    group.step();
    let (led_at, leader) = (group.now, group.leader.expect("a leader"));
    group.with(leader, |keeper, at| keeper.follows(at.now));
    group.now += 60_000;
    let again = Tenure { number: 2, ..tenure(group.term) };
    group.with(leader, |keeper, at| keeper.leads(again, at.now));
    for other in (1..=3).filter(|id| *id != leader) {
        group.ask(leader, other);
    }
    let ClockStart::Done(started) = group.with(leader, |keeper, at| keeper.start(at, StateProgress::CaughtUp)) else {
        panic!("waits")
    };
    assert_eq!(started.tenure, again);
    let outage = started.outage.expect("known");
    assert!(outage.as_millis().abs_diff(u128::from(group.now - led_at)) <= 1_000, "{outage:?}");
}

#[derive(Debug, Clone)]
enum GroupEvent {
    Jump { id: u64, by: i64 },
    Elect(u64),
    Restart { id: u64, forgets: bool },
    Pass(u64),
}

fn event() -> impl Strategy<Value = GroupEvent> {
    let jump = prop_oneof![
        Just(0),
        Just(2 * HOUR as i64),
        Just(-2 * HOUR as i64),
        Just(25 * HOUR as i64),
        Just(-25 * HOUR as i64),
        Just(LARGEST_JUMP),
        -30_000..30_000_i64,
    ];
    prop_oneof![
        3 => (1..=3_u64, jump).prop_map(|(id, by)| GroupEvent::Jump { id, by }),
        2 => (1..=3_u64).prop_map(GroupEvent::Elect),
        1 => (1..=3_u64, any::<bool>()).prop_map(|(id, forgets)| GroupEvent::Restart { id, forgets }),
        4 => (1..200_u64).prop_map(GroupEvent::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_wall_clocks_and_leaders_do_log_time_keeps_to_the_bound(
        events in proptest::collection::vec(event(), 1..60)
    ) {
        let mut group = three();
        let (mut last, mut changes) = (0, 0);
        for event in events {
            match event {
                GroupEvent::Jump { id, by } => group.members.get_mut(&id).expect("a member").wall_off = by,
                GroupEvent::Elect(id) => {
                    group.elect(id);
                    changes += 1;
                }
                GroupEvent::Restart { id, .. } if group.leader == Some(id) => {}
                GroupEvent::Restart { id, forgets } => {
                    let clock = group.members[&id].keeper.clock.clone();
                    group.start(id, if forgets { LogClock::default() } else { clock }, None);
                }
                GroupEvent::Pass(steps) => {
                    for _ in 0..steps {
                        let stamp = group.step().0.expect("a leader");
                        prop_assert!(stamp + LONGEST_WAY + 2 >= last, "back from {last} to {stamp}");
                        last = last.max(stamp);
                    }
                    let (off, passed) = (last.abs_diff(group.truth()), group.now - 1_000);
                    prop_assert!(off <= bound(passed, changes), "{off} ms off after {passed} ms");
                }
            }
        }
    }
}
