//! Runs scenarios.

use std::collections::BTreeSet;

use comity_core::command::{ApplyPolicy, check_submission};
use comity_core::{Command, Millis, State, Timestamp, explain};
use comity_policy::{AskedRequest, Bundle, GivenCluster, GivenLease, Scenario, WaitingRequest};
use comity_types::{ClusterId, RequestState};

use crate::actual::{self, Actual};
use crate::difference::differences;
use crate::federation::{Federation, Impossible, apply};
use crate::outcome::{Outcome, Verdict};
use crate::requests;

/// The clusters have joined this long before the first lease of a scenario.
const JOINED_BEFORE: Millis = Millis::from_mins(1);

/// Runs scenarios under one bundle.
#[derive(Clone, Debug)]
pub struct ScenarioRunner {
    in_force: State,
}

/// What happens before `now`, in order of time.
enum Event<'s> {
    Begin(&'s GivenLease),
    Wait(&'s WaitingRequest),
}

impl ScenarioRunner {
    /// A runner with the bundle in force.
    ///
    /// # Errors
    /// Why the core refuses the bundle.
    pub fn new(bundle: &Bundle) -> Result<Self, String> {
        let mut in_force = State::default();
        let command = ApplyPolicy { source: bundle.source().clone(), force: false, expected_hash: None };
        apply(&mut in_force, Timestamp(0), Command::ApplyPolicy(command))?;
        Ok(Self { in_force })
    }

    /// Runs one scenario.
    #[must_use]
    pub fn run(&self, scenario: &Scenario) -> Outcome {
        let verdict = match self.actual(scenario) {
            Err(reason) => Verdict::Impossible { reason },
            Ok(actual) => match differences(&scenario.expected, &actual) {
                found if found.is_empty() => Verdict::Passed,
                differences => Verdict::Failed { differences, actual: Box::new(actual) },
            },
        };
        Outcome { file: scenario.file.clone(), line: scenario.line, name: scenario.name.clone(), verdict }
    }

    fn actual(&self, scenario: &Scenario) -> Result<Actual, Impossible> {
        let mut federation = self.set_up(scenario)?;
        let needed = federation.needed_reclaims();
        let mut reclaims = actual::by_name(&needed, &federation.leases);
        federation.reclaim(needed)?;
        let mut actual = match &scenario.request {
            None => Actual::default(),
            Some(request) => request_now(&mut federation, request)?,
        };
        reclaims.append(&mut actual.reclaims);
        reclaims.sort();
        Ok(Actual { reclaims, ..actual })
    }

    /// Makes everything true that is given.
    fn set_up(&self, scenario: &Scenario) -> Result<Federation, Impossible> {
        let now = Timestamp(scenario.now_ms);
        let leases = scenario.leases.iter().map(|lease| (lease.age_ms, Event::Begin(lease)));
        let waiting = scenario.waiting.iter().map(|request| (request.age_ms, Event::Wait(request)));
        let mut events: Vec<(u64, Event<'_>)> = leases.chain(waiting).collect();
        events.sort_by_key(|(age_ms, _)| std::cmp::Reverse(*age_ms));
        let oldest = Millis(events.first().map_or(0, |(age_ms, _)| *age_ms));
        let mut federation = Federation::new(self.in_force.clone(), now.before(oldest).before(JOINED_BEFORE));
        for name in members(scenario) {
            let cluster = ClusterId::parse(name, "cluster").map_err(|invalid| invalid.to_string())?;
            federation.join(&cluster, given_cluster(scenario, name))?;
        }
        for (age_ms, event) in events {
            federation.advance_to(now.before(Millis(age_ms)))?;
            match event {
                Event::Begin(lease) => federation.begin(lease)?,
                Event::Wait(waiting) => {
                    let spec =
                        requests::spec(&waiting.request, &federation.state).map_err(|refusal| refusal.to_string())?;
                    let submitted = federation.submit(spec);
                    submitted.map_err(|why| format!("a request of {} cannot wait: {why}", waiting.request.tenant))?;
                }
            }
        }
        federation.advance_to(now)?;
        federation.check_in_force()?;
        for given in &scenario.clusters {
            let cluster = ClusterId::parse(&given.name, "cluster").map_err(|invalid| invalid.to_string())?;
            federation.observe(&cluster, given)?;
        }
        Ok(federation)
    }
}

/// Clusters that have joined: those with nodes, and the origins.
fn members(scenario: &Scenario) -> BTreeSet<&str> {
    let given = scenario.clusters.iter().map(|cluster| cluster.name.as_str());
    let leases = scenario.leases.iter().map(|lease| &lease.request);
    let waiting = scenario.waiting.iter().map(|waiting| &waiting.request);
    let requests = leases.chain(waiting).chain(&scenario.request);
    given.chain(requests.map(|request| request.origin.as_str())).collect()
}

fn given_cluster<'s>(scenario: &'s Scenario, name: &str) -> Option<&'s GivenCluster> {
    scenario.clusters.iter().find(|cluster| cluster.name == name)
}

/// Submits the request, plans, and carries the plan out, as the broker does.
fn request_now(federation: &mut Federation, request: &AskedRequest) -> Result<Actual, Impossible> {
    let spec = requests::spec(request, &federation.state).map_err(|refusal| refusal.to_string())?;
    let now = federation.state.log_time;
    let checked = match check_submission(&federation.state, &spec, now) {
        Ok(checked) => checked,
        Err(refusal) => {
            // Donors' reasons need a duration, and the check that would fill it in has failed.
            let mut spec = spec;
            if spec.duration == Millis(0) {
                spec.duration = federation.state.settings().lease_term;
            }
            return Ok(Actual::denied(&refusal, &explain::explain(&federation.state, &spec)));
        }
    };
    let explanation = explain::explain(&federation.state, &checked);
    if let Some(refusal) = explain::unservable(&federation.state, &checked, now) {
        return Ok(Actual::denied(&refusal, &explanation));
    }
    let id = federation.submit(spec)?;
    let plan = federation.plan();
    federation.place(plan.placements)?;
    let reclaims = actual::by_name(&plan.reclaims, &federation.leases);
    federation.reclaim(plan.reclaims)?;
    let state = &federation.state;
    let placed = state.requests.get(&id).filter(|request| request.state == RequestState::Placed);
    let lease = placed.and_then(|request| request.lease).and_then(|id| Some((id, state.leases.get(&id)?)));
    let actual = match (lease, explain::explain_waiting(state, id)) {
        (Some(lease), _) => Actual::placed(state, lease, &explanation),
        (None, Some(waiting)) => Actual::waits(&waiting),
        (None, None) => return Err("the request neither waits nor has a lease".to_owned()),
    };
    Ok(Actual { reclaims, ..actual })
}
