//! A change of a node's configuration that is under way.

use std::collections::BTreeSet;
use std::time::Duration;

use comity_types::LeaseId;

use super::device_layout::DeviceLayout;
use super::mig_node::MigNode;
use super::mig_settings::MigSettings;

/// How long the node may take to show a label that was set.
const LABEL_PATIENCE: Duration = Duration::from_secs(30);
/// How long the MIG manager may take to confirm the configuration before.
const RETURN_PATIENCE: Duration = Duration::from_secs(120);
/// A state is the one before the label for this long: the MIG manager has not acted yet.
const STALE_STATE: Duration = Duration::from_secs(1);

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The label names the target.
    Applying,
    /// The target failed, and the label names the configuration before.
    Returning,
}

/// A change under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeChange {
    /// Name of the wanted configuration.
    target: String,
    /// Its layouts.
    layouts: Vec<DeviceLayout>,
    /// Name of the configuration before; `None` after a restart without the node's annotation: then the label is not put
    /// back.
    previous: Option<String>,
    /// Leases that wait for it.
    leases: BTreeSet<LeaseId>,
    phase: Phase,
    /// Began before this process knew of it, by this much.
    earlier: Duration,
    began: Duration,
    label_set: Duration,
    /// Whether the MIG manager began with it.
    was_pending: bool,
    /// Why it failed, while returning.
    failure: String,
}

/// Where a change stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The node serves the target.
    Done,
    /// Somebody else changed the label.
    Abandoned,
    /// It goes on, and the label is set if a name is given.
    UnderWay(NodeChange, Option<String>),
    /// It failed, and the label is the one before if that is known. One sentence.
    Failed(String),
}

impl NodeChange {
    /// A change that begins now.
    pub(crate) fn begin(
        target: String,
        layouts: Vec<DeviceLayout>,
        previous: Option<String>,
        leases: BTreeSet<LeaseId>,
        now: Duration,
    ) -> Self {
        Self {
            target,
            layouts,
            previous,
            leases,
            phase: Phase::Applying,
            earlier: Duration::ZERO,
            began: now,
            label_set: now,
            was_pending: false,
            failure: String::new(),
        }
    }

    /// The same one, which began `earlier` than this process.
    pub(crate) fn begun_earlier(self, earlier: Duration) -> Self {
        Self { earlier, ..self }
    }

    /// The return from a failed change after a restart: its target is forgotten, so it is not tried again.
    pub(crate) fn returning(previous: String, leases: BTreeSet<LeaseId>, now: Duration) -> Self {
        let begun = Self::begin(previous.clone(), Vec::new(), Some(previous), leases, now);
        let failure = "the MIG manager did not apply a configuration, and the one before returns".to_owned();
        Self { phase: Phase::Returning, was_pending: true, failure, ..begun }
    }

    fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.began).saturating_add(self.earlier)
    }

    /// Leases that wait for it.
    pub(crate) const fn leases(&self) -> &BTreeSet<LeaseId> {
        &self.leases
    }

    /// Name of the configuration before.
    pub(crate) fn previous(&self) -> Option<&str> {
        self.previous.as_deref()
    }

    /// Layouts that the node is going to have; `None` while it returns to the configuration before.
    pub(crate) fn layouts(&self) -> Option<&[DeviceLayout]> {
        (self.phase == Phase::Applying).then_some(self.layouts.as_slice())
    }

    /// For logs.
    pub(crate) fn describe(&self, node: &MigNode) -> String {
        let target = &self.target;
        let state = node.state();
        match self.phase {
            Phase::Applying => format!("the MIG manager applies {target}: nvidia.com/mig.config.state is {state:?}"),
            Phase::Returning => format!("{target} failed, and the configuration before returns: state is {state:?}"),
        }
    }

    /// The next step. `before` are the layouts of the configuration before.
    pub(crate) fn follow(
        self,
        node: &MigNode,
        before: Option<&[DeviceLayout]>,
        settings: &MigSettings,
        now: Duration,
    ) -> Progress {
        match self.phase {
            Phase::Applying => self.follow_applying(node, settings, now),
            Phase::Returning => self.follow_returning(node, before, settings, now),
        }
    }

    fn follow_applying(mut self, node: &MigNode, settings: &MigSettings, now: Duration) -> Progress {
        let since_set = now.saturating_sub(self.label_set);
        if node.config() != self.target {
            if self.previous.as_deref() != Some(node.config()) {
                return Progress::Abandoned;
            }
            return if since_set < LABEL_PATIENCE { Progress::UnderWay(self, None) } else { Progress::Abandoned };
        }
        let state = node.state();
        self.was_pending |= matches!(state, "pending" | "rebooting");
        if state == "success" && node.serves(&self.layouts) {
            return Progress::Done;
        }
        let is_late = self.age(now) > settings.change();
        if !(is_late || state == "failed" && since_set >= STALE_STATE) {
            return Progress::UnderWay(self, None);
        }
        let waited = if is_late { format!(" after {} s", settings.change_seconds) } else { String::new() };
        let failure = format!(
            "the MIG manager did not apply configuration {}: nvidia.com/mig.config.state is {state:?}{waited}",
            self.target
        );
        match self.previous.clone() {
            None => Progress::Failed(failure),
            Some(previous) => {
                Progress::UnderWay(Self { phase: Phase::Returning, label_set: now, failure, ..self }, Some(previous))
            }
        }
    }

    /// A manager that never began may not have seen the configuration: a kubelet shows a changed ConfigMap late. Then
    /// the change is tried again.
    fn follow_returning(
        self,
        node: &MigNode,
        before: Option<&[DeviceLayout]>,
        settings: &MigSettings,
        now: Duration,
    ) -> Progress {
        let since_set = now.saturating_sub(self.label_set);
        let shows_label = self.previous.as_deref() == Some(node.config());
        if !shows_label && node.config() != self.target {
            return Progress::Abandoned;
        }
        let is_back = shows_label && node.state() == "success" && before.is_some_and(|layouts| node.has(layouts));
        if is_back && !self.was_pending && self.age(now) < settings.mount() {
            let target = self.target.clone();
            return Progress::UnderWay(Self { phase: Phase::Applying, label_set: now, ..self }, Some(target));
        }
        if is_back || since_set > RETURN_PATIENCE {
            return Progress::Failed(self.failure);
        }
        Progress::UnderWay(self, None)
    }
}
