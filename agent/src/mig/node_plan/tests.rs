#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use super::*;
use crate::mig::mig_config::with_own;
use crate::mig::mig_node::MigNode;
use crate::mig::mig_settings::MigSettings;
use crate::mig::node_memory::BLOCKED_PATIENCE;

const CONFIGURATIONS: &str = r#"version: v1
mig-configs:
  halves:
    - devices: all
      mig-enabled: true
      mig-devices:
        "3g.40gb": 2
  empty:
    - devices: all
      mig-enabled: true
      mig-devices: {}
  balanced:
    - devices: all
      mig-enabled: true
      mig-devices:
        "1g.10gb": 2
        "2g.20gb": 1
        "3g.40gb": 1
  mixed:
    - devices: [0]
      mig-enabled: false
    - devices: [1]
      mig-enabled: true
      mig-devices:
        "1g.10gb": 7
  media:
    - devices: all
      mig-enabled: true
      mig-devices:
        "1g.10gb+me": 1
"#;

/// A node of two H100, its configurations, and a clock.
struct Lab {
    node: MigNode,
    text: String,
    leases: Vec<LeaseNeed>,
    memory: NodeMemory,
    settings: MigSettings,
    now: Duration,
}

impl Lab {
    fn new(config: &str) -> Self {
        let labels = [
            ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"),
            ("nvidia.com/gpu.memory", "81559"),
            ("nvidia.com/gpu.count", "2"),
            ("nvidia.com/mig.strategy", "mixed"),
            ("nvidia.com/mig.config", config),
            ("nvidia.com/mig.config.state", "success"),
        ];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let settings = MigSettings { repartition: true, ..MigSettings::default() };
        let mut lab = Self {
            node: MigNode { name: "n".to_owned(), id: "id".to_owned(), labels, ..MigNode::default() },
            text: CONFIGURATIONS.to_owned(),
            leases: Vec::new(),
            memory: NodeMemory::default(),
            settings,
            now: Duration::from_secs(1_000),
        };
        lab.count(&[]);
        if let Ok(counts) = MigConfigs::read(CONFIGURATIONS).unwrap().counts(config, 2, lab.node.board().unwrap().0) {
            lab.count_config(&counts);
        }
        lab
    }

    /// The device plugin counts these; old names stay with nothing allocatable.
    fn count(&mut self, counts: &[(&str, u64)]) {
        for amount in self.node.allocatable.values_mut() {
            *amount = 0;
        }
        for (name, count) in counts {
            self.node.allocatable.insert((*name).to_owned(), *count);
            self.node.capacity.insert((*name).to_owned(), *count);
        }
    }

    fn count_config(&mut self, counts: &NodeCounts) {
        let mut all: BTreeMap<String, u64> = BTreeMap::new();
        for counts in counts {
            match counts {
                None => *all.entry("nvidia.com/gpu".to_owned()).or_default() += 1,
                Some(counts) => {
                    for (profile, count) in counts {
                        *all.entry(resource(profile)).or_default() += u64::from(*count);
                    }
                }
            }
        }
        let all: Vec<(&str, u64)> = all.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        self.count(&all);
    }

    fn label(&mut self, key: &str, value: &str) {
        self.node.labels.insert(format!("nvidia.com/mig.{key}"), value.to_owned());
    }

    fn lease(&mut self, id: u64, profile: &str, device: usize, starts: &[u8]) {
        let devices = BTreeMap::from([(device, starts.to_vec())]);
        self.leases.push(LeaseNeed { lease: LeaseId(id), profile: profile.to_owned(), devices });
    }

    /// Plans, and takes the step as written.
    fn plan(&mut self) -> NodePlan {
        let configs = MigConfigs::read(&self.text).unwrap();
        let Self { node, leases, settings, now, .. } = self;
        let unix_seconds = 1_795_000_000 + now.as_secs();
        let state = NodeState { node, leases, configs: Ok(&configs), settings, now: *now, unix_seconds };
        let planned = plan(state, self.memory.clone());
        self.memory = planned.memory.clone();
        match &planned.step {
            Some(CutStep::Apply(step)) => {
                if let Some(counts) = &step.counts {
                    let (text, name) = with_own(&self.text, counts, &BTreeSet::new()).unwrap();
                    assert_eq!(name, step.name);
                    self.text = text;
                }
                self.node.change = Some(step.change.clone());
                self.node.before = step.before.clone().unwrap_or_else(|| self.node.before.clone());
                self.label("config", &step.name);
            }
            Some(CutStep::SetLabel(name)) => self.label("config", name),
            Some(CutStep::ForgetBefore) => self.node.before.clear(),
            Some(CutStep::ForgetChange) => self.node.change = None,
            None => {}
        }
        planned
    }

    /// The MIG manager and the device plugin do what the label says.
    fn manage(&mut self) {
        let configs = MigConfigs::read(&self.text).unwrap();
        let counts = configs.counts(self.node.config(), 2, self.node.board().unwrap().0).unwrap();
        self.count_config(&counts);
        self.label("config.state", "success");
    }

    /// Plans until nothing is done for as long as the settings say.
    fn settle(&mut self) -> NodePlan {
        for _ in 0..10 {
            self.now += self.settings.empty() + BLOCKED_PATIENCE;
            if self.plan().step.is_some() {
                self.manage();
            }
        }
        self.plan()
    }

    /// Number of instances on a device by profile, as the configuration in force says.
    fn counts(&self, device: usize) -> Vec<(String, u32)> {
        let configs = MigConfigs::read(&self.text).unwrap();
        let counts = configs.counts(self.node.config(), 2, self.node.board().unwrap().0).unwrap();
        counts[device].clone().unwrap().into_iter().collect()
    }
}

fn device(planned: &NodePlan, index: usize) -> &BookedDevice {
    let NodeBook::Known(devices) = &planned.book else { panic!("{:?}", planned.book) };
    &devices[index]
}

fn refusal(planned: &NodePlan, lease: u64) -> (&str, &str) {
    match &planned.leases[&LeaseId(lease)] {
        LeaseCut::Refused(refusal) => (refusal.code, &refusal.message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lease_is_served_by_instances_that_exist() {
    let mut lab = Lab::new("halves");
    lab.lease(1, "3g.40gb", 1, &[0]);
    let planned = lab.plan();
    assert_eq!(planned.step, None);
    assert_eq!(planned.leases[&LeaseId(1)], LeaseCut::Ready);
    assert!(device(&planned, 0).may_cut && !device(&planned, 1).may_cut, "a device with a lease's instance stays");
    assert_eq!(device(&planned, 1).leased, BTreeSet::from([0]));
}

#[test]
fn an_instance_that_serves_elsewhere_is_cut_where_the_broker_placed_it() {
    // With 1g.10gb at 6 there is no room for the others: by number the lease is served, by slots it is not.
    let mut lab = Lab::new("balanced");
    lab.lease(1, "1g.10gb", 0, &[6]);
    assert!(matches!(lab.plan().step, Some(CutStep::Apply(_))));
    lab.manage();
    let planned = lab.plan();
    assert!(planned.leases[&LeaseId(1)] == LeaseCut::Ready && device(&planned, 0).leased.contains(&6));
    // If that device is in use, any instance serves.
    let mut lab = Lab::new("balanced");
    lab.node.local.insert(resource("2g.20gb"), 1);
    lab.lease(1, "1g.10gb", 0, &[6]);
    let planned = lab.plan();
    assert_eq!((planned.leases[&LeaseId(1)].clone(), planned.step), (LeaseCut::Ready, None));
}

#[test]
fn an_empty_device_is_cut_for_a_lease_and_merged_back() {
    let mut lab = Lab::new("halves");
    lab.lease(1, "1g.10gb", 0, &[6]);
    let planned = lab.plan();
    let Some(CutStep::Apply(step)) = &planned.step else { panic!("{:?}", planned.step) };
    assert_eq!((step.before.as_deref(), step.unused.len()), (Some("halves"), 1));
    assert!(matches!(planned.leases[&LeaseId(1)], LeaseCut::Waiting(_)));
    // While the manager works, the offer shows what will be, and nothing else is cut.
    lab.label("config.state", "pending");
    let planned = lab.plan();
    assert!(matches!(planned.leases[&LeaseId(1)], LeaseCut::Waiting(_)));
    assert!(device(&planned, 0).leased.contains(&6) && !device(&planned, 1).may_cut);
    // The label alone is not enough: the device plugin follows later.
    lab.label("config.state", "success");
    assert!(matches!(lab.plan().leases[&LeaseId(1)], LeaseCut::Waiting(_)));
    lab.manage();
    let planned = lab.plan();
    assert_eq!(planned.leases[&LeaseId(1)], LeaseCut::Ready);
    assert_eq!(
        lab.counts(0),
        [("1g.10gb".to_owned(), 3), ("3g.40gb".to_owned(), 1)],
        "the half that is not in the way stays"
    );
    assert_eq!(lab.counts(1), [("3g.40gb".to_owned(), 2)]);

    // The lease ends: the device returns, but not before it has been empty for a while.
    lab.leases.clear();
    assert_eq!(lab.plan().step, None);
    lab.now += lab.settings.empty();
    lab.node.local.insert(resource("1g.10gb"), 1);
    assert_eq!(lab.plan().step, None, "a local pod uses it");
    lab.node.local.clear();
    assert_eq!(lab.plan().step, None, "it has just become empty");
    lab.now += lab.settings.empty();
    let planned = lab.plan();
    let Some(CutStep::Apply(step)) = &planned.step else { panic!("{:?}", planned.step) };
    assert_eq!((step.name.as_str(), &step.counts, &step.before), ("halves", &None, &None));
    lab.manage();
    assert_eq!(lab.plan().step, Some(CutStep::ForgetBefore));
    assert_eq!(lab.settle().step, None);
    assert_eq!((lab.node.config(), lab.node.before.as_str()), ("halves", ""));
}

#[test]
fn instances_in_use_never_move() {
    for (local, lent) in [(1, 0), (0, 1)] {
        let mut lab = Lab::new("halves");
        lab.node.local.insert(resource("3g.40gb"), local);
        lab.node.lent.insert(resource("3g.40gb"), lent);
        lab.lease(1, "7g.80gb", 0, &[0]);
        let planned = lab.plan();
        assert!(
            !device(&planned, 0).may_cut && !device(&planned, 1).may_cut,
            "nobody knows which device the pod is on"
        );
        assert!(planned.step.is_none() && matches!(planned.leases[&LeaseId(1)], LeaseCut::Waiting(_)));
        lab.now += BLOCKED_PATIENCE;
        let planned = lab.plan();
        assert_eq!(refusal(&planned, 1).0, "mig-in-use");
        assert_eq!(planned.step, None);
    }
    // Profiles that only one device has prove that the other is empty.
    let mut lab = Lab::new("mixed");
    lab.node.local.insert("nvidia.com/gpu".to_owned(), 1);
    lab.lease(1, "7g.80gb", 1, &[0]);
    assert!(matches!(lab.plan().step, Some(CutStep::Apply(_))), "whole GPUs are no instances");
    let mut lab = Lab::new("mixed");
    lab.lease(1, "7g.80gb", 0, &[0]);
    lab.now += lab.settings.empty();
    lab.plan();
    lab.now += BLOCKED_PATIENCE;
    assert_eq!(refusal(&lab.plan(), 1).0, "mig-in-use", "MIG mode is off on device 0");
}

#[test]
fn an_idle_lease_keeps_its_instances() {
    let mut lab = Lab::new("halves");
    lab.lease(1, "3g.40gb", 0, &[4]);
    lab.lease(2, "7g.80gb", 1, &[0]);
    // No pod runs, so device 1 is empty, and the halves of device 0 suffice for lease 1.
    assert!(matches!(lab.plan().step, Some(CutStep::Apply(_))));
    lab.manage();
    let planned = lab.plan();
    assert_eq!([1, 2].map(|lease| planned.leases[&LeaseId(lease)].clone()), [LeaseCut::Ready, LeaseCut::Ready]);
    assert_eq!((lab.counts(0)[0].1, lab.counts(1)[0].0.as_str()), (2, "7g.80gb"));
    // A third lease wants the device on which lease 1 has an instance.
    lab.lease(3, "4g.40gb", 0, &[0]);
    lab.plan();
    lab.now += BLOCKED_PATIENCE;
    assert_eq!(refusal(&lab.plan(), 3).0, "mig-in-use");
}

#[test]
fn leases_that_wait_together_are_cut_together() {
    let mut lab = Lab::new("empty");
    lab.lease(1, "3g.40gb", 0, &[4]);
    lab.lease(2, "2g.20gb", 0, &[0]);
    lab.lease(3, "1g.10gb", 1, &[6, 4]);
    let planned = lab.plan();
    assert!(matches!(planned.step, Some(CutStep::Apply(_))));
    lab.manage();
    let planned = lab.plan();
    assert!(planned.leases.values().all(|cut| *cut == LeaseCut::Ready), "{:?}", planned.leases);
    assert_eq!(device(&planned, 0).leased, BTreeSet::from([0, 4]));
    assert_eq!(lab.counts(1), [("1g.10gb".to_owned(), 7)]);
    // One more comes while the node is being changed: it waits for its turn.
    let mut lab = Lab::new("empty");
    lab.lease(1, "3g.40gb", 0, &[4]);
    lab.plan();
    lab.lease(2, "7g.80gb", 1, &[0]);
    assert_eq!(lab.plan().step, None);
    lab.manage();
    let planned = lab.plan();
    assert_eq!(planned.leases[&LeaseId(1)], LeaseCut::Ready);
    assert!(matches!(planned.step, Some(CutStep::Apply(_))), "now it is its turn");
    lab.manage();
    assert_eq!(lab.plan().leases[&LeaseId(2)], LeaseCut::Ready);
    assert_eq!(lab.node.before, "empty", "the first configuration is remembered");
    lab.leases.remove(0);
    lab.settle();
    assert_eq!((lab.counts(0), lab.counts(1)[0].0.as_str()), (Vec::new(), "7g.80gb"), "one device returns");
    lab.leases.clear();
    lab.settle();
    assert_eq!(lab.node.config(), "empty");
}

#[test]
fn a_failed_change_is_taken_back_and_refused() {
    let mut lab = Lab::new("halves");
    lab.lease(1, "7g.80gb", 0, &[0]);
    lab.plan();
    lab.label("config.state", "pending");
    lab.plan();
    lab.label("config.state", "failed");
    lab.now += Duration::from_secs(2);
    assert_eq!(lab.plan().step, Some(CutStep::SetLabel("halves".to_owned())));
    assert_eq!(lab.plan().step, None, "the state is still that of the failed one");
    lab.manage();
    let planned = lab.plan();
    let (code, message) = refusal(&planned, 1);
    assert!(code == "mig-failed" && message.contains("\"failed\""), "{message}");
    assert!(!device(&planned, 0).may_cut, "no other lease is sent there for a while");
    lab.leases.clear();
    lab.lease(2, "7g.80gb", 1, &[0]);
    assert_eq!(refusal(&lab.plan(), 2).0, "mig-failed");
    lab.leases.clear();
    lab.now += lab.settings.backoff();
    assert!(device(&lab.plan(), 0).may_cut);
}

#[test]
fn a_failed_change_refuses_no_lease_that_is_served_by_number() {
    let mut lab = Lab::new("balanced");
    lab.lease(1, "1g.10gb", 0, &[6]);
    lab.plan();
    lab.label("config.state", "pending");
    lab.plan();
    lab.label("config.state", "failed");
    lab.now += Duration::from_secs(2);
    lab.plan();
    lab.manage();
    let planned = lab.plan();
    assert_eq!(planned.leases[&LeaseId(1)], LeaseCut::Ready);
    assert_eq!(planned.step, Some(CutStep::ForgetBefore), "and nothing is cut again for a while");
}

#[test]
fn a_configuration_that_the_manager_has_not_seen_is_tried_again() {
    let mut lab = Lab::new("halves");
    lab.lease(1, "7g.80gb", 0, &[0]);
    lab.plan();
    let target = lab.node.config().to_owned();
    for _ in 0..3 {
        lab.now += Duration::from_secs(10);
        lab.label("config.state", "failed");
        assert_eq!(lab.plan().step, Some(CutStep::SetLabel("halves".to_owned())));
        lab.manage();
        assert_eq!(lab.plan().step, Some(CutStep::SetLabel(target.clone())));
    }
    lab.now += lab.settings.mount();
    lab.label("config.state", "failed");
    lab.plan();
    lab.manage();
    assert_eq!(refusal(&lab.plan(), 1).0, "mig-failed");
}

#[test]
fn the_owner_decides() {
    // The owner chose another configuration meanwhile.
    let mut lab = Lab::new("halves");
    lab.lease(1, "7g.80gb", 0, &[0]);
    lab.plan();
    lab.label("config", "mixed");
    lab.manage();
    lab.leases.clear();
    assert_eq!(lab.plan().step, Some(CutStep::ForgetBefore));
    assert_eq!((lab.settle().step, lab.node.config()), (None, "mixed"));

    for (change, word) in [
        (("config.state", "failed"), "\"failed\""),
        (("config", "gone"), "no configuration \"gone\""),
        (("config", "media"), "media extensions"),
        (("strategy", "single"), "mixed strategy"),
        (("config", ""), "no label"),
    ] {
        let mut lab = Lab::new("halves");
        lab.label(change.0, change.1);
        let planned = lab.plan();
        let NodeBook::Unknown(reason) = &planned.book else { panic!("{:?}", planned.book) };
        assert!(reason.contains(word) && planned.step.is_none(), "{reason}");
    }
    let mut lab = Lab::new("halves");
    lab.count(&[("nvidia.com/mig-3g.40gb", 3)]);
    assert!(matches!(lab.plan().book, NodeBook::Unknown(_)), "the node counts something else");
    let mut lab = Lab::new("halves");
    lab.node.capacity.insert("nvidia.com/gpu".to_owned(), 2);
    assert!(matches!(lab.plan().book, NodeBook::Known(_)), "a name that is remembered is no device");
}

#[test]
fn a_change_goes_on_after_a_restart() {
    let mut lab = Lab::new("halves");
    lab.lease(1, "7g.80gb", 0, &[0]);
    lab.plan();
    lab.label("config.state", "pending");
    lab.memory = NodeMemory::default();
    let planned = lab.plan();
    assert!(matches!(planned.book, NodeBook::Known(_)) && planned.step.is_none());
    lab.manage();
    let planned = lab.plan();
    assert_eq!((&planned.leases[&LeaseId(1)], planned.step), (&LeaseCut::Ready, Some(CutStep::ForgetChange)));
    // Without knowledge of the configuration before, a failed one is left to the owner.
    let mut lab = Lab::new("halves");
    lab.lease(1, "7g.80gb", 0, &[0]);
    lab.plan();
    lab.memory = NodeMemory::default();
    lab.node.change = None;
    lab.plan();
    lab.label("config.state", "failed");
    lab.now += Duration::from_secs(2);
    let planned = lab.plan();
    assert!(planned.step.is_none() && matches!(planned.book, NodeBook::Unknown(_)));
    assert_eq!(refusal(&planned, 1).0, "mig-failed");
    assert_eq!(lab.settle().step, None);
}

#[test]
fn a_change_that_is_overdue_after_a_restart_is_taken_back_and_refused() {
    let mut lab = Lab::new("halves");
    lab.lease(1, "7g.80gb", 0, &[0]);
    lab.plan();
    lab.label("config.state", "pending");
    lab.now += lab.settings.change() / 2;
    // Time before the restart counts, although the new process has a clock of its own.
    let seconds = lab.settings.change_seconds;
    lab.node.change.as_mut().unwrap().begun -= seconds;
    lab.memory = NodeMemory::default();
    assert_eq!(lab.plan().step, None);
    assert_eq!(lab.plan().step, Some(CutStep::SetLabel("halves".to_owned())));
    // Another restart while the configuration before returns.
    lab.memory = NodeMemory::default();
    assert!(matches!(lab.plan().leases[&LeaseId(1)], LeaseCut::Waiting(_)));
    lab.manage();
    let planned = lab.plan();
    assert_eq!(refusal(&planned, 1).0, "mig-failed");
    assert_eq!(planned.step, Some(CutStep::ForgetBefore));
    assert_eq!(lab.plan().step, Some(CutStep::ForgetChange));
    assert_eq!((lab.plan().step, lab.node.config()), (None, "halves"));
}

#[test]
fn the_owners_choice_during_a_restart_stays() {
    let mut lab = Lab::new("halves");
    lab.lease(1, "7g.80gb", 0, &[0]);
    lab.plan();
    lab.memory = NodeMemory::default();
    lab.leases.clear();
    lab.label("config", "mixed");
    lab.label("config.state", "pending");
    assert_eq!(lab.plan().step, Some(CutStep::ForgetChange));
    lab.manage();
    assert_eq!((lab.settle().step, lab.node.config()), (None, "mixed"));
}
