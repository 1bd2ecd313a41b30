//! Replays of a small synthetic trace: 416 GPUs on 80 nodes of three kinds.

use std::path::{Path, PathBuf};

use comity_simulation::arrivals::{arrivals, known};
use comity_simulation::policy::PolicyName;
use comity_simulation::replay::{ReplayResult, replay};
use comity_simulation::replay_report::ReplayReport;
use comity_simulation::trace::Trace;

/// Demand beyond the last mark, which one large task could otherwise skip: 1 % is four GPUs here.
const INFLATE: f64 = 1.35;
const POLICIES: [PolicyName; 4] = [PolicyName::Comity, PolicyName::Fgd, PolicyName::BestFit, PolicyName::Random];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn trace() -> Trace {
    Trace::read(&fixture("nodes.csv"), &fixture("pods.csv")).unwrap()
}

fn run(policy: PolicyName, percent: u8) -> Vec<ReplayResult> {
    let trace = trace();
    let mut policy = policy.start(&trace, &known(trace.tasks.clone(), percent)).unwrap();
    let results = (46..48).map(|seed| replay(&trace, policy.as_mut(), seed, INFLATE)).collect();
    assert_eq!(policy.fault(), None);
    results
}

fn mean(policy: PolicyName, percent: u8) -> f64 {
    ReplayReport::new(policy, &trace(), run(policy, percent)).mean.allocated_percent_at_100.unwrap()
}

#[test]
fn comity_strands_less_than_the_others() {
    let comity = mean(PolicyName::Comity, 100);
    for other in [PolicyName::Fgd, PolicyName::BestFit, PolicyName::Random] {
        let theirs = mean(other, 100);
        assert!(comity > theirs, "comity {comity:.2} %, {other} {theirs:.2} %");
    }
}

#[test]
fn little_history_is_enough() {
    let (little, fgd) = (mean(PolicyName::Comity, 20), mean(PolicyName::Fgd, 100));
    assert!(little >= fgd, "comity with a fifth of the history {little:.2} %, fgd with all {fgd:.2} %");
}

/// The results without times.
fn choices(mut results: Vec<ReplayResult>) -> Vec<ReplayResult> {
    for result in &mut results {
        (result.figures.decisions_per_second, result.figures.p99_us) = (0.0, 0.0);
    }
    results
}

#[test]
fn a_seed_means_the_same_run_each_time() {
    let trace = trace();
    for policy in POLICIES {
        let first = choices(run(policy, 100));
        assert_eq!(first, choices(run(policy, 100)), "{policy}");
        // Earlier runs have no influence.
        let mut fresh = policy.start(&trace, &trace.tasks).unwrap();
        let last = replay(&trace, fresh.as_mut(), 47, INFLATE);
        assert_eq!(first[1..], choices(vec![last]), "{policy}");
        assert_ne!(first[0].figures, first[1].figures, "{policy}: seeds differ");
    }
}

#[test]
fn no_policy_exceeds_the_capacity() {
    for policy in POLICIES {
        for result in run(policy, 100) {
            let at_130 = result.figures.allocated_percent_at_130.unwrap();
            assert!(at_130 > 50.0 && at_130 <= 100.0, "{policy}: {at_130}");
            assert!(result.figures.refused_gpu_tasks > 0.0, "{policy} refused none of 135 %");
        }
    }
}

#[test]
fn arrivals_add_up_to_the_demand() {
    let trace = trace();
    let asked = |inflate| {
        let order = arrivals(&trace, 42, inflate);
        order.iter().map(|&task| trace.tasks[task].device_milli()).sum::<u64>()
    };
    // The last task may have needed eight GPUs.
    assert!((540_800 - 8_000..=540_800).contains(&asked(1.3)), "{}", asked(1.3));
    assert!((208_000 - 8_000..=208_000).contains(&asked(0.5)), "a long list is thinned: {}", asked(0.5));
}

#[test]
fn the_report_is_one_object_with_the_means() {
    let report = ReplayReport::new(PolicyName::Fgd, &trace(), run(PolicyName::Fgd, 100));
    let json: serde_json::Value = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!((&json["policy"], &json["nodes"], &json["gpus"]), (&"fgd".into(), &80.into(), &416.into()));
    let values: Vec<f64> = json["seeds"]
        .as_array()
        .unwrap()
        .iter()
        .map(|seed| seed["allocated_percent_at_130"].as_f64().unwrap())
        .collect();
    let mean = json["mean"]["allocated_percent_at_130"].as_f64().unwrap();
    assert_eq!(values.len(), 2);
    assert!((mean - values.iter().sum::<f64>() / 2.0).abs() < 1e-9);
    assert_eq!(json["seeds"][0]["seed"], 46);
}

fn refusal(nodes: &str, pods: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (nodes_csv, pods_csv) = (folder.path().join("nodes.csv"), folder.path().join("pods.csv"));
    std::fs::write(&nodes_csv, nodes).unwrap();
    std::fs::write(&pods_csv, pods).unwrap();
    Trace::read(&nodes_csv, &pods_csv).unwrap_err().to_string()
}

#[test]
fn invalid_files_are_refused_with_a_remedy() {
    const NODES: &str = "sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,2,T4\n";
    const PODS: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n";
    let cases = [
        (NODES, "name,cpu_milli,memory_mib,num_gpu\n", "has no column `gpu_milli`; its header must name cpu_milli"),
        ("", PODS, "has no column `sn`"),
        (NODES, PODS, "a header and no rows"),
        (NODES, &format!("{PODS}p1,4000,1024,one,1000\n"), "line 2: num_gpu is \"one\"; write a whole number"),
        (NODES, &format!("{PODS}p1,-1,1024,1,1000\n"), "line 2: cpu_milli is \"-1\""),
        (NODES, &format!("{PODS}p1,4000,1024,2,500\n"), "line 2: gpu_milli is \"500\"; a task of 2 GPUs takes 1000"),
        (NODES, &format!("{PODS}p1,4000,1024,1,1001\n"), "from 0 to 1000"),
        (NODES, &format!("{PODS}p1,4000,1024,1,49\n"), "gpu_milli is \"49\"; a task of one GPU takes 50 to 1000"),
        (NODES, &format!("{PODS}p1,4000,1024,0,500\n"), "line 2: gpu_milli is \"500\"; num_gpu is 0, and of no GPU"),
        (NODES, &format!("{PODS}p1,4000,1024,0,0\np2,4000,1024,0,\n"), "lines 2 to 3: num_gpu is 0 in all rows; name"),
        (
            NODES,
            &format!("{PODS}p1,1099511627777,1024,1,1000\n"),
            "cpu_milli is \"1099511627777\"; write a whole number",
        ),
        (NODES, &format!("{PODS}p1,4000,1024,129,1000\n"), "num_gpu is \"129\"; write a whole number from 0 to 128"),
        (NODES, "num_gpu,cpu_milli,memory_mib,num_gpu,gpu_milli\n", "names num_gpu as columns 1 and 4; keep one"),
        ("sn,cpu_milli,gpu,memory_mib,gpu,model\n", PODS, "names gpu as columns 3 and 5"),
        ("sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,0,T4\n", PODS, "lines 2 to 2: gpu is 0 in all rows"),
        (NODES, &format!("{PODS}p1,4000\n"), "line 2 has 2 values and the header 5 columns; give each line a value"),
        ("sn,cpu_milli,memory_mib,gpu,model\n,64000,262144,2,T4\n", PODS, "line 2: sn is \"\"; give each node a name"),
        (&format!("{NODES}n1,64000,262144,2,T4\n"), PODS, "line 3: sn is \"n1\"; give each node a name of its own"),
    ];
    for (nodes, pods, wanted) in cases {
        let said = refusal(nodes, pods);
        assert!(said.contains(wanted), "{said:?} lacks {wanted:?}");
    }
    // Nodes without GPUs are allowed, for tasks without GPUs.
    let (folder, nodes) = (tempfile::tempdir().unwrap(), format!("{NODES}n2,64000,262144,0,\n"));
    let path = folder.path().join("nodes.csv");
    std::fs::write(&path, nodes).unwrap();
    assert_eq!(Trace::read(&path, &fixture("pods.csv")).unwrap().nodes.len(), 2);
    let gone = Trace::read(Path::new("/nowhere/nodes.csv"), &fixture("pods.csv")).unwrap_err().to_string();
    assert!(gone.starts_with("cannot read /nowhere/nodes.csv") && gone.ends_with("may be read"), "{gone}");
    std::fs::write(&path, b"sn,cpu_milli,memory_mib,gpu,model\n\xff,64000,262144,2,T4\n").unwrap();
    let binary = Trace::read(&path, &fixture("pods.csv")).unwrap_err().to_string();
    assert!(binary.ends_with("line 2 is not UTF-8; save the file as UTF-8"), "{binary}");
}
