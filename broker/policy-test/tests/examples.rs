//! The scenarios beside the example policies hold.

use std::path::Path;

use comity_policy::{load, read_directory, read_test_files, read_tests, render_problems};
use comity_policy_test::ScenarioRunner;

/// Runs the scenarios of a folder of `policy/`; returns their number.
fn run_all(folder: &str) -> usize {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../policy").join(folder);
    let files = read_directory(&directory).expect("the policy");
    let bundle = load(files).unwrap_or_else(|problems| panic!("{}", render_problems(&problems)));
    let tests = read_test_files(&directory).expect("tests beside the policy");
    let scenarios = read_tests(&tests, &bundle).unwrap_or_else(|problems| panic!("{}", render_problems(&problems)));
    let runner = ScenarioRunner::new(&bundle).expect("the policy is valid");
    let failed: Vec<_> = scenarios.iter().map(|it| runner.run(it)).filter(|it| !it.passed()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    scenarios.len()
}

#[test]
fn the_example_federation_and_the_campus_pass_their_tests() {
    let ran = run_all("examples") + run_all("campus") + run_all("cohorts") + run_all("datasets");
    assert!(ran >= 40, "the examples show what tests can say; {ran} are too few");
}
