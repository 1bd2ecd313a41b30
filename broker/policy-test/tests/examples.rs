//! The scenarios of the example federation hold.

use std::path::Path;

use comity_policy::{load, read_directory, read_test_files, read_tests, render_problems};
use comity_policy_test::ScenarioRunner;

#[test]
fn the_example_federation_passes_its_tests() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../policy/examples");
    let files = read_directory(&directory).expect("the examples");
    let bundle = load(files).unwrap_or_else(|problems| panic!("{}", render_problems(&problems)));
    let tests = read_test_files(&directory).expect("tests beside the examples");
    let scenarios = read_tests(&tests, &bundle).unwrap_or_else(|problems| panic!("{}", render_problems(&problems)));
    assert!(scenarios.len() >= 15, "the examples show what tests can say; {} are too few", scenarios.len());
    let runner = ScenarioRunner::new(&bundle).expect("the examples are valid");
    let failed: Vec<_> = scenarios.iter().map(|it| runner.run(it)).filter(|it| !it.passed()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}
