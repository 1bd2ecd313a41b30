//! A week of the campus of `policy/campus`: sessions have its 64 GPUs by day, training by night, and on Tuesday morning
//! a lecture has eight of them reserved. Both weeks contain a change of the clocks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use comity_core::command::LeaseOutcome;
use comity_core::demand::{DeviceChoice, GpuDemand, Isolation, Preemptible, RequestSpec, Share};
use comity_core::inventory::{Device, NodeMap, Sharing};
use comity_core::limits::MAX_PLACEMENTS_PER_PLAN;
use comity_core::scheduler::reclaims_at;
use comity_core::{Millis, Refusal, Timestamp};
use comity_policy::{BundleSource, load, read_directory, render_problems};
use comity_types::{ClassName, ClusterId, LeaseId, NodeId, RequestId, TenantId};

use crate::broker::spec::request_spec;
use crate::broker::{Broker, hardware};
use crate::random::Random;
use crate::time::{DAY, HOUR, MINUTE};

/// Interval at which people submit, and things happen: the notice of the campus, so that it begins and ends at a step.
const STEP: u64 = 30 * MINUTE;
/// A week, in days.
const DAYS: u64 = 7;
const CAMPUS_NODES: usize = 8;
const CAMPUS_NODE_GPUS: usize = 8;
/// Waiting sessions beyond which nobody asks for another one: with them, the GPUs are always full by day.
const WAITING_SESSIONS: usize = 24;
/// Time after which somebody who waits for a session goes away.
const PATIENCE: u64 = HOUR;
/// Training requests that wait at any time.
const WAITING_TRAINING: usize = 6;
/// The working day in Zurich, in milliseconds of the day.
const WORK: std::ops::Range<u64> = 8 * HOUR..18 * HOUR;
/// The lecture's time in Zurich on Tuesday, by which it has its GPUs reserved.
const LECTURE: std::ops::Range<u64> = 9 * HOUR..12 * HOUR;
/// GPUs of the lecture, one for each of its requests.
const LECTURE_GPUS: u64 = 8;
/// The number of Tuesday among the days from Thursday on.
const TUESDAY: usize = 5;

/// A week from Thursday to Thursday, in Zurich.
#[derive(Clone, Copy, Debug)]
pub struct CampusWeek {
    /// When it begins, in milliseconds since 1970: 00:00 in Zurich.
    begins_at: u64,
    /// When the clocks change.
    changes_at: u64,
    /// Offset from UTC before and after the change.
    offsets: [u64; 2],
}

/// The week in which summer time ended in 2026.
pub const AUTUMN: CampusWeek =
    CampusWeek { begins_at: 1_792_620_000_000, changes_at: 1_792_890_000_000, offsets: [2 * HOUR, HOUR] };
/// The week in which summer time begins in 2027.
pub const SPRING: CampusWeek =
    CampusWeek { begins_at: 1_805_929_200_000, changes_at: 1_806_195_600_000, offsets: [HOUR, 2 * HOUR] };

/// One day of a week.
#[derive(Clone, Debug, Default)]
pub struct CampusDay {
    /// Minutes after midnight, in Zurich, at which the first session began.
    pub first_session: Option<u64>,
    /// Minutes after midnight at which the first training of the day began.
    pub first_training: Option<u64>,
    /// Most thousandths of GPUs that sessions held at a time.
    pub sessions_milli: u64,
    /// Most thousandths of GPUs that training held at a time.
    pub training_milli: u64,
    /// Most thousandths of GPUs that the lecture held at a time.
    pub lecture_milli: u64,
}

/// The days of a week, and what went wrong.
#[derive(Clone, Debug, Default)]
pub struct CampusReport {
    /// Thursday to Wednesday.
    pub days: Vec<CampusDay>,
    /// Leases that got notice because the working day was about to begin.
    pub reclaimed: usize,
    /// Leases that were held when their tenants may have none, and GPUs that the lecture lacked in its time.
    pub violations: BTreeSet<String>,
}

impl CampusWeek {
    /// Simulates the week.
    ///
    /// # Errors
    /// When the policy cannot be read, or the core refuses a command.
    pub fn run(self, seed: u64) -> Result<CampusReport, Refusal> {
        let mut campus = Campus::new(self)?;
        let mut random = Random::new(seed);
        let mut report = CampusReport { days: vec![CampusDay::default(); 7], ..CampusReport::default() };
        let mut now = self.begins_at;
        while self.local(now) < self.local(self.begins_at) + DAYS * DAY {
            campus.advance_to(now)?;
            campus.submit(&mut random)?;
            campus.serve(&mut report)?;
            campus.look(&mut report);
            now += STEP;
        }
        Ok(report)
    }

    /// The time on clocks in Zurich, in milliseconds.
    fn local(self, at: u64) -> u64 {
        at + self.offsets[usize::from(at >= self.changes_at)]
    }

    /// Day of the week from Thursday on, and time of the day.
    fn day_and_time(self, at: u64) -> (usize, u64) {
        let local = self.local(at);
        let day = local / DAY - self.local(self.begins_at) / DAY;
        (usize::try_from(day).unwrap_or(usize::MAX), local % DAY)
    }

    fn is_working(self, at: u64) -> bool {
        let (day, time) = self.day_and_time(at);
        // Thursday is 0, so Saturday and Sunday are 2 and 3.
        !matches!(day, 2 | 3) && WORK.contains(&time)
    }

    fn is_lecture(self, at: u64) -> bool {
        let (day, time) = self.day_and_time(at);
        day == TUESDAY && LECTURE.contains(&time)
    }
}

struct Campus {
    week: CampusWeek,
    broker: Broker,
    donor: ClusterId,
    origin: ClusterId,
    courses: TenantId,
    lecture: TenantId,
    training: TenantId,
    class: ClassName,
    trainings: u64,
}

impl Campus {
    fn new(week: CampusWeek) -> Result<Self, Refusal> {
        let (donor, origin) = (ClusterId::parse("campus-gpu", "cluster")?, ClusterId::parse("campus-hub", "cluster")?);
        let mut broker = Broker::joined_under(policy()?, &[donor.clone(), origin.clone()], Timestamp(week.begins_at))?;
        let l40s = Device {
            architecture: "Ada Lovelace".to_owned(),
            cuda_compute_capability: "8.9".to_owned(),
            ..hardware::device("NVIDIA-L40S", 46_068, Sharing::Fractional { step_milli: 1 })
        };
        let node = hardware::node(256_000, 1_000_000, vec![l40s; CAMPUS_NODE_GPUS]);
        let nodes: Result<NodeMap, Refusal> =
            (0..CAMPUS_NODES).map(|number| Ok((NodeId::parse(&format!("n{number}"), "node")?, node.clone()))).collect();
        broker.advertise(&donor, nodes?)?;
        Ok(Self {
            week,
            broker,
            donor,
            origin,
            courses: TenantId::parse("courses", "tenant")?,
            lecture: TenantId::parse("lecture", "tenant")?,
            training: TenantId::parse("training", "tenant")?,
            class: ClassName::parse("mid", "class")?,
            trainings: 0,
        })
    }

    /// Lets happen what is due. All terms end at a step.
    fn advance_to(&mut self, now: u64) -> Result<(), Refusal> {
        self.broker.advance_to(Timestamp(now));
        self.broker.expire()?;
        for lease in self.broker.ending() {
            self.broker.report(lease, &LeaseOutcome::Clean)?;
        }
        Ok(())
    }

    fn submit(&mut self, random: &mut Random) -> Result<(), Refusal> {
        let now = self.broker.now();
        let courses = &self.courses;
        let gone: Vec<RequestId> = self
            .broker
            .state
            .queued()
            .filter(|(_, request)| {
                request.spec.tenant == *courses && request.submitted_at.after(Millis(PATIENCE)) <= now
            })
            .map(|(id, _)| id)
            .collect();
        for request in gone {
            self.broker.cancel(request)?;
        }
        let (day, time) = self.week.day_and_time(now.0);
        if day == TUESDAY && time == LECTURE.start {
            for _ in 0..LECTURE_GPUS {
                let duration = LECTURE.end - LECTURE.start;
                self.submit_one(self.lecture.clone(), 1, Share::Whole, duration, None)?;
            }
        }
        if (7 * HOUR..WORK.end).contains(&time) {
            for _ in self.broker.state.queued_of(&self.courses)..WAITING_SESSIONS {
                let duration = 3 * HOUR + u64::try_from(random.below(4)).unwrap_or(0) * STEP;
                self.submit_one(self.courses.clone(), 1, Share::Whole, duration, None)?;
            }
        }
        while self.broker.state.queued_of(&self.training) < WAITING_TRAINING {
            self.trainings += 1;
            let gpus = [8, 16, 32][random.below(3)];
            // Every third one lasts into the working day, and saves itself when it gets notice.
            let (duration, preemptible) = if self.trainings.is_multiple_of(3) {
                let terms = Preemptible { grace: Millis(10 * MINUTE), checkpoint: true, same_gpu_type: false };
                (20 * HOUR, Some(terms))
            } else {
                (4 * HOUR + u64::try_from(random.below(9)).unwrap_or(0) * HOUR, None)
            };
            self.submit_one(self.training.clone(), gpus, Share::Whole, duration, preemptible)?;
        }
        Ok(())
    }

    fn submit_one(
        &mut self,
        tenant: TenantId,
        count: u32,
        share: Share,
        duration: u64,
        preemptible: Option<Preemptible>,
    ) -> Result<RequestId, Refusal> {
        let gpus = GpuDemand {
            devices: DeviceChoice::Class(self.class.clone()),
            share,
            count,
            cpu_milli_per_gpu: 0,
            memory_mib_per_gpu: 0,
            isolation: Isolation::None,
            gpu_type: None,
        };
        let spec = request_spec(tenant, self.origin.clone(), gpus, Millis(duration));
        self.broker.submit_spec(RequestSpec { preemptible, ..spec })
    }

    /// Reclaims and places until nothing changes, as the leader does.
    fn serve(&mut self, report: &mut CampusReport) -> Result<(), Refusal> {
        loop {
            let revision = self.broker.state.revision;
            let proposed = reclaims_at(&self.broker.state, &self.donor, self.broker.now());
            report.reclaimed += self.broker.reclaim(Vec::new(), proposed)?.leases.len();
            let plan = self.broker.plan(MAX_PLACEMENTS_PER_PLAN);
            let placed = self.broker.place(plan.placements)?;
            self.broker.reclaim(Vec::new(), plan.reclaims)?;
            for lease in placed {
                self.broker.report_ready(lease)?;
                self.note_begin(lease, report);
            }
            if self.broker.state.revision == revision {
                return Ok(());
            }
        }
    }

    fn note_begin(&self, lease: LeaseId, report: &mut CampusReport) {
        let Some(held) = self.broker.state.leases.get(&lease) else { return };
        let (day, time) = self.week.day_and_time(self.broker.now().0);
        let Some(day) = report.days.get_mut(day) else { return };
        if held.tenant == self.courses {
            day.first_session.get_or_insert(time / MINUTE);
        } else if held.tenant == self.training {
            day.first_training.get_or_insert(time / MINUTE);
        }
    }

    /// Counts what is held, and by whom it must not be.
    fn look(&self, report: &mut CampusReport) {
        let now = self.broker.now().0;
        let is_working = self.week.is_working(now);
        let mut held: BTreeMap<&TenantId, u64> = BTreeMap::new();
        for (id, lease) in self.broker.state.live_leases().filter(|(_, lease)| lease.occupies()) {
            *held.entry(&lease.tenant).or_default() += lease.placement.milli();
            if is_working == (lease.tenant == self.training) {
                report.violations.insert(format!("{} holds {id} at {:?}", lease.tenant, self.week.day_and_time(now)));
            }
        }
        let of = |tenant: &TenantId| held.get(tenant).copied().unwrap_or(0);
        if self.week.is_lecture(now) && of(&self.lecture) < LECTURE_GPUS * 1_000 {
            let at = self.week.day_and_time(now);
            report.violations.insert(format!("the lecture has {} thousandths at {at:?}", of(&self.lecture)));
        }
        let (day, _) = self.week.day_and_time(now);
        let Some(day) = report.days.get_mut(day) else { return };
        day.lecture_milli = day.lecture_milli.max(of(&self.lecture));
        day.sessions_milli = day.sessions_milli.max(of(&self.courses));
        day.training_milli = day.training_milli.max(of(&self.training));
    }
}

/// The bundle of `policy/campus`, with the offsets of its time zone.
fn policy() -> Result<BundleSource, Refusal> {
    let refused = |why: String| Refusal::invalid("policy", "policy/campus", &why, "mend the files");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../policy/campus");
    let files = read_directory(&folder).map_err(|error| refused(error.to_string()))?;
    let bundle = load(files).map_err(|problems| refused(render_problems(&problems)))?;
    Ok(bundle.source().clone())
}
