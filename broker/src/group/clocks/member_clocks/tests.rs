use super::*;

const WALL: u64 = 1_795_000_000_000;
/// Two hours.
const WALL_ERROR: u64 = 7_200_000;

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn reading(received: u64, wall_ms: u64, log_ms: Option<u64>) -> Reading {
    Reading { sent: at(received - 10), received: at(received), wall_ms, log_ms, led: None, leads: false }
}

fn own(wall_ms: u64, log_ms: Option<u64>) -> Own {
    Own { id: 1, now: at(10_000), wall_ms, log_ms, led: None }
}

fn voters(n: u64) -> BTreeSet<u64> {
    (1..=n).collect()
}

/// Brokers 2 and further, which answered just now.
fn heard(answers: &[(u64, Option<u64>)]) -> MemberClocks {
    let mut clocks = MemberClocks::default();
    for (id, (wall_ms, log_ms)) in (2..).zip(answers) {
        clocks.note(id, reading(10_000, *wall_ms, *log_ms));
    }
    clocks
}

#[test]
fn the_base_is_the_median_of_the_log_clocks_of_a_majority() {
    let clocks = heard(&[(WALL, Some(500)), (WALL, Some(900))]);
    // Half of ten milliseconds on the way is added.
    assert_eq!(clocks.base(&voters(3), &own(WALL, Some(700))), Some(Base::LogClock(700)));
    assert_eq!(heard(&[(WALL, Some(500))]).base(&voters(3), &own(WALL, Some(700))), Some(Base::LogClock(505)));
    assert_eq!(heard(&[(WALL, Some(500))]).base(&voters(3), &own(WALL, None)), Some(Base::LogClock(505)));
    assert_eq!(heard(&[]).base(&voters(3), &own(WALL, Some(700))), None, "no majority");
    assert_eq!(heard(&[]).base(&voters(1), &own(WALL, None)), Some(Base::WallClock(WALL)));
}

#[test]
fn wall_clocks_are_the_base_only_where_nobody_knows_the_log_clock() {
    let clocks = heard(&[(WALL + WALL_ERROR, None), (WALL - WALL_ERROR, None)]);
    assert_eq!(clocks.base(&voters(3), &own(WALL, None)), Some(Base::WallClock(WALL)));
    let two = heard(&[(WALL + WALL_ERROR, None)]);
    assert_eq!(two.base(&voters(3), &own(WALL, None)), Some(Base::WallClock(WALL)), "the lower one");
}

#[test]
fn a_member_that_does_not_answer_any_more_does_not_count() {
    let clocks = heard(&[(WALL, Some(5)), (WALL, Some(5))]);
    let later = Own { now: at(11_600), ..own(WALL, Some(700)) };
    assert_eq!(clocks.base(&voters(3), &later), None);
    assert_eq!(clocks.reference(&voters(3), &later, None), None);
}

#[test]
fn no_single_wall_clock_moves_the_reference() {
    for wrong in [WALL + WALL_ERROR, WALL - WALL_ERROR, WALL + 315_360_000_000] {
        let others_right = heard(&[(WALL, None), (WALL + 30, None)]);
        let reference = others_right.reference(&voters(3), &own(wrong, None), None).unwrap_or_default();
        assert!(reference.abs_diff(WALL) < 100);
        assert!(is_off(offset(wrong, reference)));
        let other_wrong = heard(&[(wrong, None), (WALL, None)]);
        let reference = other_wrong.reference(&voters(3), &own(WALL, None), None).unwrap_or_default();
        assert!(reference.abs_diff(WALL) < 100);
        assert_eq!(other_wrong.right(&voters(3), &own(WALL, None), reference), BTreeSet::from([3]));
    }
}

#[test]
fn of_two_wall_clocks_log_time_says_which_one_is_right() {
    for wrong in [WALL + WALL_ERROR, WALL - WALL_ERROR] {
        let reference = heard(&[(wrong, None)]).reference(&voters(3), &own(WALL, None), Some(WALL + 20));
        assert!(reference.is_some_and(|ms| ms.abs_diff(WALL) < 100), "{reference:?}");
    }
}

#[test]
fn the_outage_is_what_the_member_knows_that_was_led_last() {
    let mut clocks = heard(&[]);
    let led = |led| Reading { led, ..reading(10_000, WALL, None) };
    let me = Own { led: Some(Led::LogClock(1_000)), ..own(WALL, None) };
    assert_eq!(clocks.outage(&voters(3), &own(WALL, None), 9_000), None, "nobody knows");
    assert_eq!(clocks.outage(&voters(3), &me, 9_000), Some(at(8_000)));
    clocks.note(2, led(Some(Led::Ago { ago: at(700), as_of: at(9_500) })));
    clocks.note(3, led(None));
    assert_eq!(clocks.outage(&voters(3), &me, 9_000), Some(at(1_200)));
}
