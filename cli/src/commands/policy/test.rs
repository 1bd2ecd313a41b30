//! `comity policy test`: runs the scenarios beside a policy.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::{fs, thread};

use clap::Args;
use comity_policy::{Bundle, BundleSource, Problem, ReadError, Scenario, read_test_files, read_tests, scan_directory};
use comity_policy_test::{Outcome, ScenarioRunner};

use super::bad_bundle::{bad_bundle, unreadable};
use super::junit::junit;
use crate::failure::Failure;
use crate::output::write_stdout;
use crate::session::Session;
use crate::views::{PolicyProblem, PolicyTested};

const TEST_EXAMPLES: &str = "\
Examples:
  comity policy test policy/
  comity policy test policy/ --run quota          only scenarios with this in their name
  comity policy test policy/ -o json | jq -r '.scenarios[] | select(.result != \"passed\") | .name'
  comity policy test policy/ --junit report.xml   in a pipeline

Needs no broker. Files *.test.yaml beside the policy say what is given, what is
requested, and what must become of it. Each scenario is decided by the broker's
own code. Exit code 1 if one does not hold.
";

/// Remedy for a directory without tests.
const FIRST_TEST: &str = "\
write one beside the policy, such as first.test.yaml:
  apiVersion: policy.comity.dev/v1
  kind: PolicyTest
  given:
    now: 2026-11-23T08:00:00Z
    clusters: [{name: DONOR, nodes: [{gpus: 8, product: NVIDIA-H100-80GB-HBM3}]}]
  scenarios:
  - name: the team borrows
    request: {tenant: TENANT, origin: CLUSTER, class: CLASS, gpus: 2}
    expect: {decision: placed, donor: DONOR}";

/// `comity policy test`.
#[derive(Debug, Args)]
#[command(after_help = TEST_EXAMPLES)]
pub struct PolicyTestArgs {
    /// Directory with the documents and their tests
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// Run only scenarios whose name, or file, contains this text
    #[arg(long, value_name = "PATTERN")]
    run: Option<String>,
    /// Also write the results as JUnit XML into this file; '-' for standard output, in place of the usual text
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

impl PolicyTestArgs {
    pub(super) fn run(&self, session: &Session) -> Result<(), Failure> {
        let tested = self.test()?;
        match &self.junit {
            Some(file) if file == Path::new("-") => write_stdout(&junit(&tested))?,
            file => {
                if let Some(file) = file {
                    fs::write(file, junit(&tested)).map_err(|error| {
                        let reason = format!("cannot write {}: {error}", file.display());
                        Failure::configuration(reason).field("--junit", file.display())
                    })?;
                }
                session.print(&tested)?;
            }
        }
        match (tested.problems.len(), tested.failed()) {
            (0, 0) => Ok(()),
            (0, failed) => {
                Err(Failure::refused("policy-tests-failed", format!("scenarios that do not hold: {failed}"))
                    .remedy("correct the policy, or what the scenarios expect"))
            }
            (problems, _) => Err(bad_bundle(problems)),
        }
    }

    fn test(&self) -> Result<PolicyTested, Failure> {
        let scan = scan_directory(&self.dir).map_err(|error| unreadable(&self.dir, &error))?;
        let files = read_test_files(&self.dir).map_err(|error| no_tests(&self.dir, &error))?;
        let unusable =
            |problems: &[Problem]| PolicyTested::unusable(problems.iter().map(PolicyProblem::from).collect());
        let bundle = match Bundle::compile(&BundleSource::of_files(scan.files)) {
            Ok(bundle) if scan.problems.is_empty() => bundle,
            Ok(_) => return Ok(unusable(&scan.problems)),
            Err(problems) => return Ok(unusable(&[scan.problems, problems].concat())),
        };
        let all = match read_tests(&files, &bundle) {
            Ok(scenarios) => scenarios,
            Err(problems) => return Ok(unusable(&problems)),
        };
        let runner = ScenarioRunner::new(&bundle).map_err(|reason| Failure::refused("bad-policy", reason))?;
        let count = all.len();
        if count == 0 {
            let reason = format!("the *.test.yaml files of {} hold no scenario", self.dir.display());
            return Err(Failure::usage(reason).field("<DIR>", self.dir.display()).remedy(FIRST_TEST));
        }
        let chosen: Vec<Scenario> = all.into_iter().filter(|scenario| self.runs(scenario)).collect();
        if chosen.is_empty() {
            let pattern = self.run.as_deref().unwrap_or_default();
            return Err(Failure::usage(format!("no name of the {count} scenarios contains {pattern:?}"))
                .field("--run", pattern)
                .remedy("give a part of a name, or leave out --run"));
        }
        let left_out = count - chosen.len();
        Ok(PolicyTested::new(run_all(&runner, &chosen), left_out))
    }

    fn runs(&self, scenario: &Scenario) -> bool {
        let pattern = self.run.as_ref().map(|pattern| pattern.to_lowercase());
        pattern.is_none_or(|pattern| {
            scenario.name.to_lowercase().contains(&pattern) || scenario.file.to_lowercase().contains(&pattern)
        })
    }
}

fn no_tests(dir: &Path, error: &ReadError) -> Failure {
    match error {
        ReadError::NoTests { .. } => {
            Failure::usage(format!("{} has no *.test.yaml file", dir.display())).remedy(FIRST_TEST)
        }
        error => unreadable(dir, error),
    }
    .field("<DIR>", dir.display())
}

/// Runs the scenarios on all cores; the outcomes are in their order.
fn run_all(runner: &ScenarioRunner, scenarios: &[Scenario]) -> Vec<Outcome> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(scenarios.len());
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(scenarios.len())));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(scenario) = scenarios.get(index) else { break };
                    let outcome = runner.run(scenario);
                    outcomes.lock().unwrap_or_else(PoisonError::into_inner).push((index, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcomes.sort_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}
