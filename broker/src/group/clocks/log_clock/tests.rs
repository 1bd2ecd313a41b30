use proptest::prelude::*;

use super::*;

const BASE: u64 = 1_795_000_000_000;

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn started() -> LogClock {
    let mut clock = LogClock::default();
    clock.start(at(1_000), BASE);
    clock
}

#[test]
fn it_goes_with_monotonic_time() {
    assert_eq!(LogClock::default().now(at(5)), None);
    let clock = started();
    assert_eq!((clock.now(at(1_000)), clock.now(at(61_000))), (Some(BASE), Some(BASE + 60_000)));
}

#[test]
fn a_minute_brings_no_more_than_the_bound_in_either_direction() {
    for (ahead, after_a_minute) in [(7_200_000, 60_600), (-7_200_000, 59_400), (300, 60_300), (-9, 60_000)] {
        let mut clock = started();
        clock.steer(at(1_000), ahead);
        assert_eq!(clock.now(at(61_000)), Some(BASE + after_a_minute), "{ahead}");
    }
}

#[test]
fn a_difference_that_is_slewed_away_is_gone() {
    let mut clock = started();
    clock.steer(at(1_000), 1_000);
    assert_eq!(clock.now(at(1_000 + 200_000)), Some(BASE + 201_000));
}

#[test]
fn a_follower_keeps_its_own_as_long_as_it_may_be_right() {
    let mut clock = started();
    clock.follow(at(2_000), at(2_008), BASE + 1_004);
    assert_eq!(clock, {
        let mut same = started();
        same.line = same.line.map(|line| ClockLine { at: at(2_008), log_us: line.at(at(2_008)), slew_us: 0 });
        same
    });
    clock.follow(at(3_000), at(3_008), BASE + 5_000);
    assert_eq!(clock.now(at(3_008)), Some(BASE + 5_000), "the nearest that the leader's clock may have been at");
    clock.follow(at(4_000), at(4_008), BASE);
    assert_eq!(clock.now(at(4_008)), Some(BASE + 9));
}

#[test]
fn of_two_values_the_lower_one_is_the_median() {
    assert_eq!(lower_median(Vec::new()), None);
    assert_eq!(lower_median(vec![7, 3]), Some(3));
    assert_eq!(lower_median(vec![9, 1, 5]), Some(5));
}

proptest! {
    #[test]
    fn whatever_it_is_steered_towards_it_never_goes_back_nor_leaves_the_bound(
        steps in proptest::collection::vec((1_u64..5_000, any::<i64>()), 1..200)
    ) {
        let (mut clock, mut now) = (started(), 1_000_u64);
        let mut last = BASE;
        for (passed, ahead) in steps {
            clock.steer(at(now), ahead);
            now += passed;
            let log_ms = clock.now(at(now)).unwrap_or_default();
            prop_assert!(log_ms >= last);
            last = log_ms;
            let passed = now - 1_000;
            prop_assert!(log_ms.abs_diff(BASE + passed) <= passed / 100 + 1, "{} after {}", log_ms - BASE, passed);
        }
    }
}
