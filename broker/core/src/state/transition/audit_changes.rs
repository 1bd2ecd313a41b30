//! What the audit log says of an entry. Changes of requests and leases record themselves, so that no command can forget
//! them.

use std::collections::BTreeSet;

use comity_audit::{ACTS, AuditRecord, Citation, DONE, SealedRecord, Subject};
use comity_policy::{Bundle, DocRef};
use comity_types::{LeaseId, LeaseState, RequestId, RequestState, TenantId};

use crate::model::actor::Actor;
use crate::model::broker_record::BrokerRole;
use crate::model::lease::Lease;
use crate::model::policy_record::PolicyRecord;
use crate::model::reclaim::ReclaimReason;
use crate::model::refusal::Code;
use crate::model::request::Request;
use crate::state::State;
use crate::state::transition::{IllegalChange, Transition};

/// A record before it is numbered.
pub(crate) struct Act {
    pub(crate) act: &'static str,
    pub(crate) subject: Subject,
    pub(crate) refused: Option<Code>,
    pub(crate) cause: String,
    pub(crate) request: Option<RequestId>,
    pub(crate) tenant: Option<TenantId>,
    pub(crate) institutions: BTreeSet<String>,
    pub(crate) reasons: Vec<DocRef>,
}

impl Act {
    pub(crate) fn new(act: &'static str, subject: Subject) -> Self {
        Self {
            act,
            subject,
            refused: None,
            cause: String::new(),
            request: None,
            tenant: None,
            institutions: BTreeSet::new(),
            reasons: Vec::new(),
        }
    }

    fn on_request(act: &'static str, state: &State, id: RequestId, request: &Request) -> Self {
        Self {
            request: Some(id),
            tenant: Some(request.spec.tenant.clone()),
            institutions: state.institutions_of_request(request).collect(),
            ..Self::new(act, Subject::new("request", id))
        }
    }

    fn on_lease(act: &'static str, state: &State, id: LeaseId, lease: &Lease) -> Self {
        Self {
            request: Some(lease.request),
            tenant: Some(lease.tenant.clone()),
            institutions: state.institutions_of_lease(lease).collect(),
            ..Self::new(act, Subject::new("lease", id))
        }
    }
}

impl Transition<'_> {
    /// Records an act.
    pub(crate) fn audit(&mut self, act: Act) {
        debug_assert!(ACTS.contains(&act.act), "an act without a place in the list: {}", act.act);
        self.acts.push(act);
    }

    /// Records a submission, with the documents that permit it.
    pub(super) fn audit_submission(&mut self, id: RequestId, request: &Request) {
        let act = Act::on_request("request-submitted", self.state, id, request);
        let reasons =
            self.policy.as_ref().map_or_else(Vec::new, |bundle| permits_submission(bundle, self.actor, request));
        self.audit(Act { reasons, ..act });
    }

    /// Records how a request goes on, unless a new lease tells.
    pub(super) fn audit_request_move(&mut self, id: RequestId, before: RequestState) {
        let Some(request) = self.state.requests.get(&id) else { return };
        let act = match request.state {
            after if after == before => return,
            RequestState::Placed => return,
            RequestState::Queued => "request-queued-again",
            RequestState::Completed => "request-completed",
            RequestState::Cancelled => "request-cancelled",
            RequestState::Failed => "request-failed",
        };
        let last =
            request.lease.and_then(|lease| self.state.leases.get(&lease)).filter(|_| before != RequestState::Queued);
        let cause = match last.and_then(|lease| lease.end_reason) {
            Some(reason) => format!("its lease ended: {reason}"),
            None if request.state == RequestState::Failed => "not placed by its latest start".to_owned(),
            None => String::new(),
        };
        let act = Act::on_request(act, self.state, id, request);
        self.audit(Act { cause, ..act });
    }

    /// Records a new lease, with the documents that permit it.
    pub(super) fn audit_placement(&mut self, id: LeaseId, reasons: Vec<DocRef>) {
        let Some(lease) = self.state.leases.get(&id) else { return };
        let cause = match lease.moved_from {
            Some(old) => format!("at {}, in the place of {old}", lease.placement.donor),
            None => format!("at {}", lease.placement.donor),
        };
        let act = Act::on_lease("lease-placed", self.state, id, lease);
        self.audit(Act { cause, reasons, ..act });
    }

    /// Records that a lease is reclaimed or ends. Whether its two sides are ready, silent or clean is no decision.
    pub(super) fn audit_lease_move(
        &mut self,
        id: LeaseId,
        (before, before_reason): &(LeaseState, Option<ReclaimReason>),
        reasons: Vec<DocRef>,
    ) {
        let Some(lease) = self.state.leases.get(&id) else { return };
        let is_another_reclaim = lease.reclaim.as_ref().map(|reclaim| &reclaim.reason) != before_reason.as_ref();
        let act = match (*before, lease.state) {
            (LeaseState::Reclaiming, LeaseState::Reclaiming) if is_another_reclaim => "lease-reclaimed",
            (before, after) if before == after => return,
            (_, LeaseState::Reclaiming) => "lease-reclaimed",
            (LeaseState::Reclaiming, LeaseState::Active | LeaseState::Suspect) => "lease-reclaim-cancelled",
            (_, LeaseState::Ending) => "lease-ended",
            (
                _,
                LeaseState::Placed
                | LeaseState::Connecting
                | LeaseState::Active
                | LeaseState::Suspect
                | LeaseState::Ended,
            ) => return,
        };
        let reclaim = lease.reclaim.as_ref().map(|reclaim| reclaim.reason.to_string());
        let cause = match (lease.end_reason, reclaim) {
            (Some(reason), Some(why)) => format!("{reason}: {why}"),
            (Some(reason), None) => reason.to_string(),
            (None, why) => why.unwrap_or_default(),
        };
        let act = Act::on_lease(act, self.state, id, lease);
        self.audit(Act { cause, reasons, ..act });
    }

    /// Records the role of a broker.
    pub(super) fn audit_broker(&mut self, number: u64, role: BrokerRole) {
        let act = Act::new("broker-role-set", Subject::new("broker", number));
        let reasons = self.grants(false, &BTreeSet::new());
        self.audit(Act { cause: role.as_str().to_owned(), reasons, ..act });
    }

    /// Records the bundle that comes into force, by its hash, and who signed it.
    pub(super) fn audit_policy(&mut self, record: &PolicyRecord) {
        let PolicyRecord { bundle, signed_by, .. } = record;
        let act = Act::new("policy-applied", Subject::new("policy", &bundle.hash));
        let mut cause = bundle.commit().map_or_else(String::new, |commit| format!("commit {commit}"));
        if !signed_by.is_empty() {
            let signers: Vec<&str> = signed_by.iter().map(String::as_str).collect();
            cause += &format!(", signed by {}", signers.join(", "));
        }
        let reasons = self.grants(false, &BTreeSet::new());
        self.audit(Act { cause, reasons, ..act });
    }

    /// The lines that give the actor the roles of an administrative act: as a maintainer, as an operator of one of these
    /// institutions, and as a broker operator if brokers are concerned.
    pub(crate) fn grants(&self, of_brokers: bool, institutions: &BTreeSet<String>) -> Vec<DocRef> {
        let (Some(bundle), Actor::User(user)) = (&self.policy, self.actor) else { return Vec::new() };
        let roles = bundle.roles_of(user);
        let maintains = roles.federation_admin.then(|| bundle.federation.cite("maintainers"));
        let operates_brokers = (of_brokers && roles.broker_operator).then(|| bundle.federation.cite("brokerOperators"));
        let operated = roles.institutions_operated.intersection(institutions);
        let operated = operated.filter_map(|name| Some(bundle.institutions.get(name)?.cite("operators")));
        maintains.into_iter().chain(operates_brokers).chain(operated).collect()
    }

    /// Numbers and seals the records of this entry, and appends them to the head of the log.
    pub(super) fn seal_acts(
        &mut self,
        command: &'static str,
        revision: u64,
    ) -> Result<Vec<SealedRecord>, IllegalChange> {
        let policy = self.policy.as_ref().map_or_else(String::new, |bundle| bundle.hash.clone());
        let actor = self.actor.name();
        let acts = std::mem::take(&mut self.acts);
        let key = self.state.records.nonce_key;
        let head = &mut self.state.records.audit;
        let mut sealed = Vec::with_capacity(acts.len());
        for act in acts {
            let record = AuditRecord {
                index: head.size(),
                time_ms: self.now.0,
                revision,
                actor: actor.clone(),
                act: act.act.to_owned(),
                subject: act.subject,
                command: command.to_owned(),
                outcome: act.refused.map_or(DONE, Code::as_str).to_owned(),
                cause: act.cause,
                request: act.request.map_or_else(String::new, |id| id.to_string()),
                tenant: act.tenant.map_or_else(String::new, |tenant| tenant.to_string()),
                institutions: act.institutions.into_iter().collect(),
                policy: policy.clone(),
                reasons: act.reasons.into_iter().map(cited).collect(),
                nonce: key.nonce(head.size()),
                previous: head.last(),
            };
            let record = record.seal().map_err(|error| IllegalChange { revision, what: error.to_string() })?;
            head.append(record.hash);
            sealed.push(record);
        }
        Ok(sealed)
    }
}

fn cited(document: DocRef) -> Citation {
    let DocRef { kind, name, file, line } = document;
    Citation { kind: kind.to_string(), name, file, line }
}

/// The lines of the Tenant that let the actor submit for it, and of its priority class.
fn permits_submission(bundle: &Bundle, actor: &Actor, request: &Request) -> Vec<DocRef> {
    let Some(tenant) = bundle.tenants.get(request.spec.tenant.as_str()) else { return Vec::new() };
    let by = match actor {
        Actor::User(_) => Some(tenant.cite("members")),
        Actor::Cluster(_) | Actor::Leader(_) => {
            bundle.institutions.get(&tenant.spec.institution).map(|institution| institution.cite("clusters"))
        }
    };
    let priority = request.spec.priority.as_ref().and_then(|class| bundle.priorities.get(class.as_str()));
    let priority = priority.map(|class| class.cite("value"));
    by.into_iter().chain([tenant.cite("clusters"), tenant.cite("classes")]).chain(priority).collect()
}
