//! Leases.

use comity_proto::v1;
use comity_types::{Delivery, EndReason, LeaseState};
use serde::Serialize;

use super::delivery::VirtualNode;
use super::list::Row;
use super::placement::Placement;
use super::reclaim::Reclaim;
use super::spec::Gpus;
use super::value::{Known, non_empty, non_zero};
use crate::output::{Answer, Column, Sheet, fields};
use crate::units::{age, format_duration};

/// `lease show` says how to renew a lease when this part of its term is left, and at the latest when [`WARN_MS`] is left.
const WARN_AT_PART: u64 = 5;
const WARN_MS: u64 = 5 * 60_000;

/// A lease.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// "lease-N".
    pub id: String,
    /// Request it serves.
    pub request: String,
    /// Tenant.
    pub tenant: String,
    /// Origin.
    pub origin: String,
    /// Donor.
    pub donor: Option<String>,
    /// Donor's nodes and devices.
    pub placement: Option<Placement>,
    /// Requested GPUs.
    pub gpus: Gpus,
    /// Peering that carries its traffic.
    pub peering: Option<String>,
    /// Current state.
    pub state: Known<LeaseState>,
    /// Why it ends: `released`, `expired`, `cancelled`, `hold-expired`, `donor-failed`, `origin-failed`,
    /// `origin-refused`, `reclaimed`, `preempted`, `not-needed`, `part-failed`, `device-lost`, `node-lost`, `donor-lost`,
    /// `origin-revoked`, `donor-revoked`, `idle`.
    pub end_reason: Option<&'static str>,
    /// The cause of its delay, or its last error.
    pub message: Option<String>,
    /// Whether the donor's side is prepared.
    pub donor_ready: bool,
    /// Whether the origin reached the donor.
    pub origin_ready: bool,
    /// Namespace on the donor.
    pub donor_namespace: Option<String>,
    /// How it is delivered to the origin.
    pub delivery: Known<Delivery>,
    /// Namespace on the origin that holds the Secret, or whose pods may run on the virtual node.
    pub target_namespace: Option<String>,
    /// Secret with the kubeconfig, or a file of the agent if the origin has no Kubernetes; none for a virtual node.
    pub secret_name: Option<String>,
    /// Selector and tolerations of a pod that runs on the virtual node; none once the lease ends.
    pub virtual_node: Option<VirtualNode>,
    /// Length of one term, in milliseconds.
    pub term_ms: u64,
    /// When it was placed.
    pub placed_at_ms: Option<u64>,
    /// Deadline to become active; the donor then frees its capacity.
    pub hold_until_ms: Option<u64>,
    /// When it became active.
    pub active_at_ms: Option<u64>,
    /// When it expires unless renewed.
    pub expires_at_ms: Option<u64>,
    /// When both sides had removed it.
    pub ended_at_ms: Option<u64>,
    /// Why and until when it is being reclaimed, if it is.
    pub reclaim: Option<Reclaim>,
    /// Last report that its work is saved.
    pub checkpointed_at_ms: Option<u64>,
    /// Lease of the same request that it replaces (migration).
    pub moved_from: Option<String>,
    /// Lease of the same request that replaces it (migration).
    pub moved_to: Option<String>,
    /// Idle time after which it is released, in milliseconds; none if it may stay idle.
    pub release_idle_ms: Option<u64>,
    /// Since when no work has used it; none while work uses it.
    pub idle_since_ms: Option<u64>,
    /// Fencing token.
    pub fencing_token: u64,
    /// Revision of its last change.
    pub revision: u64,
}

/// Whether the lease is ending or has ended.
const fn is_over(state: Known<LeaseState>) -> bool {
    matches!(state, Known::Value(LeaseState::Ending | LeaseState::Ended))
}

impl From<v1::Lease> for Lease {
    fn from(lease: v1::Lease) -> Self {
        let state = Known::from(lease.state().try_into());
        let end_reason = EndReason::try_from(lease.end_reason()).ok().map(EndReason::as_str);
        let delivery = Known::from(lease.delivery().try_into());
        let by_node = delivery.is(Delivery::VirtualNode) && !is_over(state);
        Self {
            virtual_node: by_node.then(|| VirtualNode::new(&lease.id, &lease.target_namespace)),
            delivery,
            id: lease.id,
            request: lease.request,
            tenant: lease.tenant,
            origin: lease.origin,
            donor: lease.placement.as_ref().map(|placement| placement.donor.clone()),
            placement: lease.placement.map(Placement::from),
            gpus: lease.gpus.into(),
            peering: non_empty(lease.peering),
            state,
            end_reason,
            message: non_empty(lease.message),
            donor_ready: lease.donor_ready,
            origin_ready: lease.origin_ready,
            donor_namespace: non_empty(lease.donor_namespace),
            target_namespace: non_empty(lease.target_namespace),
            secret_name: non_empty(lease.secret_name),
            term_ms: lease.term_ms,
            placed_at_ms: non_zero(lease.placed_at_ms),
            hold_until_ms: non_zero(lease.hold_until_ms),
            active_at_ms: non_zero(lease.active_at_ms),
            expires_at_ms: non_zero(lease.expires_at_ms),
            ended_at_ms: non_zero(lease.ended_at_ms),
            reclaim: lease.reclaim.map(Reclaim::from),
            checkpointed_at_ms: non_zero(lease.checkpointed_at_ms),
            moved_from: non_empty(lease.moved_from),
            moved_to: non_empty(lease.moved_to),
            release_idle_ms: non_zero(lease.release_idle_ms),
            idle_since_ms: non_zero(lease.idle_since_ms),
            fencing_token: lease.fencing_token,
            revision: lease.revision,
        }
    }
}

impl Lease {
    fn state_text(&self) -> String {
        match self.end_reason {
            Some(reason) => format!("{} ({reason})", self.state),
            None => self.state.to_string(),
        }
    }

    /// Whether it is ending or has ended.
    pub(crate) const fn is_over(&self) -> bool {
        is_over(self.state)
    }

    /// It with its GPUs and donor, as in "lease-7 (3 frontier on centre)".
    pub(crate) fn with_place(&self) -> String {
        format!("{} ({} on {})", self.id, self.gpus.summary(), self.donor.as_deref().unwrap_or("a donor"))
    }

    /// When it expires unless renewed; none once it ends.
    pub(crate) fn expiry_ms(&self) -> Option<u64> {
        self.expires_at_ms.filter(|_| !is_over(self.state))
    }

    /// When it expires; shortly before, how to keep it.
    fn expiry_text(&self, now_ms: u64) -> String {
        let Some(at) = self.expiry_ms() else { return String::new() };
        let text = age(at, now_ms);
        let left = at.saturating_sub(now_ms);
        let is_soon = left <= self.term_ms / WARN_AT_PART || (left <= WARN_MS && left < self.term_ms);
        if is_soon { format!("{text}; to keep it, comity lease renew {}", self.id) } else { text }
    }

    /// For people, while it is idle: `idle for 12m, released in 18m`. A gang with several leases is released once all of
    /// them are due.
    fn idle_text(&self, now_ms: u64) -> Option<String> {
        let (since, limit) = (self.idle_since_ms?, self.release_idle_ms?);
        if !self.state.is(LeaseState::Active) {
            return None;
        }
        let whole = |ms: u64| format_duration(ms - ms % 1_000);
        let left = since.saturating_add(limit).saturating_sub(now_ms);
        let release = if left < 1_000 {
            "due for release".to_owned()
        } else {
            format!("released in {}", whole(left.next_multiple_of(1_000)))
        };
        Some(format!("idle for {}, {release}", whole(now_ms.saturating_sub(since))))
    }

    /// Its message; without one, how long it has been idle.
    pub(crate) fn message_text(&self, now_ms: u64) -> Option<String> {
        self.message.clone().or_else(|| self.idle_text(now_ms))
    }

    /// Place of the kubeconfig: a Secret, or a file if the origin's agent runs without Kubernetes.
    fn kubeconfig_text(&self) -> Option<String> {
        let name = self.secret_name.as_ref().filter(|_| !self.delivery.is(Delivery::VirtualNode))?;
        Some(match &self.target_namespace {
            _ if name.ends_with(".kubeconfig") => {
                format!("file kubeconfigs/{name} in the state directory of the agent of {}", self.origin)
            }
            Some(namespace) => format!("Secret {namespace}/{name} on {}", self.origin),
            None => format!("Secret {name} on {}", self.origin),
        })
    }
}

impl Row for Lease {
    const HEADS: &'static [Column] = &[
        Column::text("lease"),
        Column::text("request").rank(5),
        Column::text("tenant").rank(3),
        Column::text("origin").rank(4),
        Column::text("donor").rank(1),
        Column::text("gpus"),
        Column::text("delivery").rank(6),
        Column::state("state"),
        Column::text("expires").rank(2),
        Column::message("message").rank(7),
    ];
    const NONE: &'static str = "no leases";

    fn key(&self) -> &str {
        &self.id
    }

    fn rows(&self, now_ms: u64) -> Vec<Vec<String>> {
        vec![vec![
            self.id.clone(),
            self.request.clone(),
            self.tenant.clone(),
            self.origin.clone(),
            self.donor.clone().unwrap_or_else(|| "-".to_owned()),
            self.gpus.summary(),
            self.delivery.to_string(),
            self.state_text(),
            age(self.expiry_ms().unwrap_or(0), now_ms),
            self.message_text(now_ms).unwrap_or_default(),
        ]]
    }
}

impl Answer for Lease {
    fn table(&self, now_ms: u64) -> Sheet {
        let side = |ready: bool| if ready { "ready" } else { "not ready" };
        let node = self.virtual_node.as_ref();
        let donor = self.donor.as_deref().unwrap_or("-");
        let pods =
            node.map(|node| format!("pods of {} on {} may run on {donor}; they need", node.namespace, self.origin));
        let at = |time: Option<u64>| time.map(|at| age(at, now_ms)).unwrap_or_default();
        fields(&[
            ("Lease", self.id.clone()),
            ("State", self.state_text()),
            ("Message", self.message.clone().unwrap_or_default()),
            ("Idle", self.idle_text(now_ms).unwrap_or_default()),
            ("Reclaimed", self.reclaim.as_ref().map(|reclaim| reclaim.summary(now_ms)).unwrap_or_default()),
            ("Moves to", self.moved_to.clone().unwrap_or_default()),
            ("Moved from", self.moved_from.clone().unwrap_or_default()),
            ("Work saved", at(self.checkpointed_at_ms)),
            ("Request", self.request.clone()),
            ("Tenant", self.tenant.clone()),
            ("Origin", format!("{} ({})", self.origin, side(self.origin_ready))),
            ("Donor", format!("{donor} ({})", side(self.donor_ready))),
            ("GPUs", self.gpus.summary()),
            ("Isolation", self.gpus.isolation.unwrap_or_default().to_owned()),
            ("Placement", self.placement.as_ref().map(Placement::summary).unwrap_or_default()),
            ("RDMA", self.placement.as_ref().map(Placement::rdma_summary).unwrap_or_default()),
            ("Peering", self.peering.clone().unwrap_or_default()),
            ("Namespace", self.donor_namespace.clone().unwrap_or_default()),
            ("Delivery", self.delivery.to_string()),
            ("Kubeconfig", self.kubeconfig_text().unwrap_or_default()),
            ("Pods", pods.unwrap_or_default()),
            ("  nodeSelector", node.map(VirtualNode::selector_text).unwrap_or_default()),
            ("  tolerations", node.map(VirtualNode::tolerations_text).unwrap_or_default()),
            ("Term", format_duration(self.term_ms)),
            ("Placed", at(self.placed_at_ms)),
            ("Active", at(self.active_at_ms)),
            ("Expires", self.expiry_text(now_ms)),
            (
                "Release idle",
                self.release_idle_ms.map(|limit| format!("after {}", format_duration(limit))).unwrap_or_default(),
            ),
            ("Ended", at(self.ended_at_ms)),
            ("Fencing token", self.fencing_token.to_string()),
        ])
    }
}

/// A lease of three GPUs on the donor "centre".
#[cfg(test)]
pub(crate) fn lease_at_centre(id: &str, state: v1::LeaseState) -> Lease {
    let gpus = v1::GpuDemand {
        class: "frontier".to_owned(),
        count: 3,
        share: Some(v1::Share { kind: Some(v1::share::Kind::Whole(v1::share::Whole {})) }),
        ..v1::GpuDemand::default()
    };
    let placement = v1::Placement { donor: "centre".to_owned(), ..v1::Placement::default() };
    Lease::from(v1::Lease {
        id: id.to_owned(),
        state: state.into(),
        gpus: Some(gpus),
        placement: Some(placement),
        ..v1::Lease::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(change: impl FnOnce(&mut v1::Lease)) -> Lease {
        let mut lease = v1::Lease {
            id: "lease-7".to_owned(),
            origin: "campus".to_owned(),
            placement: Some(v1::Placement { donor: "centre".to_owned(), ..v1::Placement::default() }),
            state: v1::LeaseState::Active.into(),
            delivery: v1::Delivery::Namespace.into(),
            target_namespace: "comity-leases".to_owned(),
            secret_name: "comity-lease-7".to_owned(),
            expires_at_ms: 7_200_000,
            term_ms: 3_600_000,
            ..v1::Lease::default()
        };
        change(&mut lease);
        lease.into()
    }

    #[test]
    fn the_kubeconfig_is_a_secret_or_a_file() {
        let table = lease(|_| {}).table(3_600_000).to_string();
        assert!(table.contains("Secret comity-leases/comity-lease-7 on campus"), "{table}");
        assert!(table.contains("in 1h") && table.contains("namespace") && !table.contains("nodeSelector"), "{table}");
        let table = lease(|lease| lease.secret_name = "lease-7.kubeconfig".to_owned()).table(0).to_string();
        let place = "file kubeconfigs/lease-7.kubeconfig in the state directory of the agent of campus";
        assert!(table.contains(place), "{table}");
    }

    #[test]
    fn a_virtual_node_shows_selector_and_tolerations() {
        let by_node = |lease: &mut v1::Lease| {
            lease.delivery = v1::Delivery::VirtualNode.into();
            lease.target_namespace = "lab".to_owned();
            lease.secret_name = String::new();
        };
        let shown = lease(by_node);
        let table = shown.table(0).to_string();
        for line in [
            "pods of lab on campus may run on centre",
            "comity.dev/lease: lease-7",
            "comity.dev/lease=lease-7:NoSchedule, virtual-node.liqo.io/not-allowed:NoExecute",
        ] {
            assert!(table.contains(line), "{table}");
        }
        assert!(!table.contains("Kubeconfig"), "{table}");
        let json = serde_json::to_value(&shown).expect("serialises");
        assert_eq!(json["delivery"], "virtual-node");
        assert_eq!(json["virtualNode"]["nodeSelector"]["comity.dev/lease"], "lease-7");
        assert_eq!(json["virtualNode"]["tolerations"][1]["operator"], "Exists");
    }

    #[test]
    fn a_lease_that_ends_soon_says_how_to_keep_it() {
        let expires = |left_ms: u64| lease(|_| {}).table(7_200_000 - left_ms).to_string();
        assert!(!expires(721_000).contains("comity lease renew"), "{}", expires(721_000));
        assert!(expires(720_000).contains("in 12m; to keep it, comity lease renew lease-7"), "{}", expires(720_000));
    }

    #[test]
    fn an_idle_lease_shows_when_it_is_released() {
        let idle = |since, state: v1::LeaseState| {
            lease(|lease| {
                (lease.release_idle_ms, lease.idle_since_ms, lease.state) = (1_800_000, since, state.into());
            })
        };
        let shown = idle(3_600_000, v1::LeaseState::Active);
        let table = shown.table(4_320_000).to_string();
        assert!(table.contains("idle for 12m, released in 18m") && table.contains("after 30m"), "{table}");
        assert_eq!(shown.rows(4_320_000)[0][9], "idle for 12m, released in 18m");
        assert!(shown.table(9_000_000).to_string().contains("due for release"));
        for other in [idle(0, v1::LeaseState::Active), idle(3_600_000, v1::LeaseState::Suspect)] {
            assert!(!other.table(4_320_000).to_string().contains("idle for"));
        }
    }

    #[test]
    fn an_ended_lease_shows_no_expiry() {
        for state in [v1::LeaseState::Ending, v1::LeaseState::Ended] {
            let ended = lease(|lease| lease.state = state.into());
            let table = ended.table(0).to_string();
            assert!(!table.contains("Expires"), "{table}");
            assert_eq!(ended.rows(0)[0][8], "-");
        }
        assert_eq!(lease(|_| {}).rows(3_600_000)[0][8], "in 1h");
    }
}
