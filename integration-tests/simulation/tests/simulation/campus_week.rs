//! A campus by day and by night, over both changes of the clocks.

use comity_simulation::campus_week::{AUTUMN, CampusReport, SPRING};

/// Most that 64 GPUs give, in thousandths.
const ALL_MILLI: u64 = 64_000;
const SATURDAY: usize = 2;
const SUNDAY: usize = 3;
const TUESDAY: usize = 5;

fn check(report: &CampusReport) {
    assert!(report.violations.is_empty(), "{:#?}", report.violations);
    assert!(report.reclaimed > 0, "long training got no notice: {report:#?}");
    for (number, day) in report.days.iter().enumerate() {
        let is_weekend = matches!(number, SATURDAY | SUNDAY);
        // 08:00 on the clocks of Zurich, before and after the change.
        assert_eq!(day.first_session, (!is_weekend).then_some(8 * 60), "day {number}: {report:#?}");
        assert!(day.training_milli >= ALL_MILLI * 3 / 4, "day {number}: {report:#?}");
        // Sessions that would have lasted into the lecture did not begin.
        assert_eq!(day.lecture_milli, if number == TUESDAY { 8_000 } else { 0 }, "day {number}: {report:#?}");
        if !is_weekend {
            assert_eq!(day.sessions_milli, ALL_MILLI, "day {number}: {report:#?}");
        }
    }
}

#[test]
fn sessions_have_the_day_and_training_the_night_when_summer_time_ends() {
    check(&AUTUMN.run(1).unwrap());
}

#[test]
fn sessions_have_the_day_and_training_the_night_when_summer_time_begins() {
    check(&SPRING.run(1).unwrap());
}
