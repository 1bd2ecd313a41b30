//! `comity whoami`: who the caller is, and what policy lets it do.

use clap::Args;
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_runtime::BrokerChannel;
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{Answer, Column, Sheet, columns, fields};
use crate::session::{Session, call};
use crate::units::age;

const WHOAMI_EXAMPLES: &str = "\
Examples:
  comity whoami
  comity whoami -o json | jq -r '.tenants[] | select(.maySubmit) | .tenant'

Asks the broker, so it shows the roles of the policy that is in force.
";

/// `comity whoami`.
#[derive(Debug, Args)]
#[command(after_help = WHOAMI_EXAMPLES)]
pub struct WhoamiArgs {}

/// The caller and its rights.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CallerRights {
    /// SPIFFE id of the certificate.
    pub(super) id: String,
    /// `user`, `cluster` or `broker`.
    kind: String,
    /// The brokers' addresses.
    brokers: String,
    /// Directory of the certificate.
    identity: Option<String>,
    /// When the certificate expires.
    pub(super) certificate_not_after_ms: u64,
    /// Whether a policy bundle is in force.
    pub(super) policy_in_force: bool,
    /// Whether the caller maintains the federation.
    pub(super) maintainer: bool,
    /// Whether the caller may invite brokers.
    broker_operator: bool,
    /// Whether the caller is a planner.
    planner: bool,
    /// Institutions whose clusters the caller operates.
    pub(super) institutions: Vec<String>,
    /// Tenants in which the caller has a role.
    pub(super) tenants: Vec<TenantRights>,
}

/// The caller's rights in one tenant.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TenantRights {
    /// Tenant.
    pub(super) tenant: String,
    /// `viewer`, `submitter` or `admin`; none for a cluster.
    role: Option<String>,
    /// Whether the caller may submit requests for it.
    may_submit: bool,
}

impl CallerRights {
    /// Asks the broker.
    ///
    /// # Errors
    /// [`Failure`] of the call, or if the certificate cannot be read.
    pub(super) async fn ask(session: &Session, channel: BrokerChannel) -> Result<Self, Failure> {
        let answer = call(FederationServiceClient::new(channel).who_am_i(v1::WhoAmIRequest {})).await?;
        let rights = |rights: v1::TenantRights| TenantRights {
            tenant: rights.tenant,
            role: Some(rights.role).filter(|role| !role.is_empty()),
            may_submit: rights.may_submit,
        };
        Ok(Self {
            id: answer.id,
            kind: answer.kind,
            brokers: session.endpoints()?.to_string(),
            identity: session.identity_dir().ok().map(|dir| dir.path().display().to_string()),
            certificate_not_after_ms: session.certificate_not_after_ms()?,
            policy_in_force: answer.policy_in_force,
            maintainer: answer.maintainer,
            broker_operator: answer.broker_operator,
            planner: answer.planner,
            institutions: answer.institutions,
            tenants: answer.tenants.into_iter().map(rights).collect(),
        })
    }

    /// Whether policy gives the caller no role at all.
    pub(super) fn has_no_role(&self) -> bool {
        let has_right = self.maintainer || self.broker_operator || self.planner;
        self.kind == "user" && !has_right && self.institutions.is_empty() && self.tenants.is_empty()
    }

    /// Whether lists of clusters, leases and requests may be read.
    pub(super) fn may_read(&self) -> bool {
        self.policy_in_force && self.kind != "broker" && !self.has_no_role()
    }

    /// Whether a tenant is one of the caller's. A caller without tenants looks after all that it may see.
    pub(super) fn owns(&self, tenant: &str) -> bool {
        self.tenants.is_empty() || self.tenants.iter().any(|rights| rights.tenant == tenant)
    }

    /// For people: `maintainer; operator of ncc`.
    fn roles_text(&self) -> String {
        let maintainer = match (self.maintainer, self.policy_in_force) {
            (true, true) => Some("maintainer of the federation".to_owned()),
            (true, false) => Some("bootstrap admin: may apply the first policy".to_owned()),
            (false, _) => None,
        };
        let operator = (self.broker_operator && self.policy_in_force).then(|| "broker operator".to_owned());
        let word = if self.kind == "cluster" { "cluster of" } else { "operator of" };
        let institutions = (!self.institutions.is_empty()).then(|| format!("{word} {}", self.institutions.join(", ")));
        let planner = self.planner.then(|| "planner".to_owned());
        let roles: Vec<String> = maintainer.into_iter().chain(operator).chain(planner).chain(institutions).collect();
        if roles.is_empty() && self.has_no_role() { "none".to_owned() } else { roles.join("; ") }
    }
}

impl Answer for CallerRights {
    fn table(&self, now_ms: u64) -> Sheet {
        let head = fields(&[
            ("Id", self.id.clone()),
            ("Kind", self.kind.clone()),
            ("Brokers", self.brokers.clone()),
            ("Identity", self.identity.clone().unwrap_or_default()),
            ("Certificate ends", age(self.certificate_not_after_ms, now_ms)),
            ("Roles", self.roles_text()),
        ]);
        if !self.policy_in_force {
            return head.gap().paragraph(
                "No policy is in force, so nobody has a role yet: a bootstrap admin runs 'comity policy apply DIRECTORY'.",
            );
        }
        if self.has_no_role() {
            return head.gap().paragraph("Policy gives this id no role: ask a maintainer for one.");
        }
        if self.tenants.is_empty() {
            return head;
        }
        let row = |rights: &TenantRights| {
            let role = rights.role.clone().unwrap_or_else(|| "-".to_owned());
            let may = match rights.role.as_deref() {
                Some("viewer") => "see requests and leases",
                Some("submitter") => "submit; change your own requests and leases",
                Some("admin") => "submit; change all requests and leases",
                None => "submit for the pods of this cluster",
                Some(_) => "-",
            };
            vec![rights.tenant.clone(), role, may.to_owned()]
        };
        let heads = [Column::text("tenant"), Column::text("role"), Column::prose("may")];
        head.gap().then(columns(&heads, self.tenants.iter().map(row).collect(), ""))
    }
}

impl WhoamiArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// [`Failure`] of the call, or if standard output cannot be written.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        session.print(&CallerRights::ask(session, session.channel()?).await?)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A submitter of poly-ml.
    pub(in crate::commands) fn alice() -> CallerRights {
        CallerRights {
            id: "spiffe://federation.example/user/alice".to_owned(),
            kind: "user".to_owned(),
            brokers: "127.0.0.1:7443".to_owned(),
            identity: None,
            certificate_not_after_ms: 90 * 24 * 3_600_000,
            policy_in_force: true,
            maintainer: false,
            broker_operator: false,
            planner: false,
            institutions: Vec::new(),
            tenants: vec![TenantRights {
                tenant: "poly-ml".to_owned(),
                role: Some("submitter".to_owned()),
                may_submit: true,
            }],
        }
    }

    #[test]
    fn rights_are_words() {
        let text = alice().table(0).to_string();
        assert!(text.contains("in 90d") && text.contains("poly-ml  submitter  submit; change your own"), "{text}");
        let institutions = vec!["ncc".to_owned()];
        let operator = CallerRights { maintainer: true, broker_operator: true, institutions, ..alice() };
        assert_eq!(operator.roles_text(), "maintainer of the federation; broker operator; operator of ncc");
    }

    #[test]
    fn before_the_first_policy_the_next_command_is_named() {
        let bare = CallerRights { policy_in_force: false, tenants: Vec::new(), ..alice() };
        assert_eq!(bare.roles_text(), "none");
        assert!(bare.table(0).to_string().contains("comity policy apply"));
        let admin = CallerRights { maintainer: true, ..bare };
        assert!(admin.roles_text().contains("first policy"));
    }
}
