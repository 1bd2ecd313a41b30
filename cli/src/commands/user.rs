//! `comity user`: people and robots that call the brokers.

use clap::{Args, Subcommand, ValueEnum};
use comity_policy::{Bundle, Roles, TenantRole, add_member};
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_runtime::{BrokerChannel, SpiffeId, UserName};
use serde::Serialize;

use super::institution::revocation::{Treatment, listed, what_ends};
use super::invitation::new_invitation::{InvitationText, Invited, NewInvitation};
use super::policy::{bundle_in_force, edit_in_force, note_that_policy_stays_changed};
use crate::confirm::ConfirmArgs;
use crate::failure::Failure;
use crate::output::{Answer, Sheet, note};
use crate::session::{Session, call, idempotency_key};
use crate::units::{DurationBounds, counted, format_duration};

const ADD_EXAMPLES: &str = "\
Examples:
  comity user add alice                         prints the command that alice runs
  comity user add alice --tenant poly-ml        also makes her a submitter of the tenant
  comity user add alice --ttl 24h > alice.token
  comity user add alice -o json | jq -r .command

The token is a secret. It works once and is shown once: on a terminal with the command to run, in
a file or a pipe alone. alice makes her own key; nobody else sees it. Only a maintainer may invite
users, and only one who is a broker operator a broker operator. Policy decides what alice may do;
--tenant edits the bundle in force, says what that changes, and asks if anything does. 'comity
invitation revoke' takes the token back.
";

const REVOKE_USER_EXAMPLES: &str = "\
Examples:
  comity user revoke alice --dry-run       says what would end
  comity user revoke alice
  comity user revoke alice --leases stop   also ends what she submitted
  comity user revoke alice --yes           in a script: do not ask

All certificates of alice are void, and so are open invitations for her and by her: her watches and
calls end on every broker within seconds. Her roles stay; to end them, edit the policy.

Leases stay, and so do the kubeconfigs that alice downloaded. '--leases stop' ends the leases of the
requests that she submitted, '--leases drain' after the donor's notice; both cancel her waiting
requests. Any other lease ends by 'comity lease release LEASE'.

Maintainers may revoke users, and operators those whose roles are all in institutions that they
operate. Nobody revokes their own certificate. '--dry-run' says if nobody is left who may invite
alice again.
";

/// `comity user`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  comity user add alice\n  comity user revoke alice\n")]
pub enum UserCommand {
    /// Invite a user: print the command with which they log in
    #[command(after_help = ADD_EXAMPLES)]
    Add(UserAddArgs),
    /// Revoke a user's certificates
    #[command(after_help = REVOKE_USER_EXAMPLES)]
    Revoke(UserRevokeArgs),
}

/// `comity user revoke`.
#[derive(Debug, Args)]
pub struct UserRevokeArgs {
    /// Name of the user, as in policy documents after `/user/`
    #[arg(value_name = "NAME")]
    user: UserName,
    /// Revoke a user whom neither policy, invitations nor the brokers' certificates name
    #[arg(long)]
    allow_unknown: bool,
    /// What becomes of the leases in force of requests that the user submitted
    #[arg(long, value_enum, default_value_t = OwnLeases::Finish, value_name = "HOW")]
    leases: OwnLeases,
    /// Say what would end, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    confirm: ConfirmArgs,
    /// Key that makes a repeated call safe: the same key has no second effect [default: random]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

/// What becomes of a user's leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OwnLeases {
    /// Leave them to the tenant, which may renew them
    Finish,
    /// Reclaim them with the donor's notice
    Drain,
    /// End them at once: right if somebody else may hold a key
    Stop,
}

impl From<OwnLeases> for Treatment {
    fn from(leases: OwnLeases) -> Self {
        match leases {
            OwnLeases::Finish => Self::Finish,
            OwnLeases::Drain => Self::Drain,
            OwnLeases::Stop => Self::Stop,
        }
    }
}

/// The answer of `revoke`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RevokedUser {
    user: String,
    /// Whether nothing was changed.
    dry_run: bool,
    /// Number of open invitations that are void.
    invitations: u32,
    /// Number of leases in force of the user's tenants, which stay.
    tenant_leases: u32,
    /// Number of leases in force of the requests that the user submitted, which end as asked.
    submitted_leases: u32,
    /// Number of such leases that are not in force yet, or whose gang has not started: these end at once.
    starting: u32,
    /// Number of the user's waiting requests, which are cancelled.
    requests: u32,
    /// Whether nobody is left who may invite the user again.
    none_may_invite: bool,
    #[serde(skip)]
    ends: Vec<String>,
}

impl RevokedUser {
    /// "all certificates of alice are void, and so is 1 open invitation; 2 leases stay with the tenants of alice, …".
    fn consequence(&self) -> String {
        let Self { user, invitations, tenant_leases: leases, ends, .. } = self;
        let mut text = format!("all certificates of {user} are void");
        if *invitations > 0 {
            let are = if *invitations == 1 { "is" } else { "are" };
            let open = counted(*invitations, "open invitation", "open invitations");
            text.push_str(&format!(", and so {are} {open}"));
        }
        if !ends.is_empty() {
            text.push_str(&format!("; of what {user} submitted, {}", listed(ends)));
        }
        if *leases > 0 {
            let stay = counted(*leases, "lease stays", "leases stay");
            let (end, them) = if *leases == 1 { ("it ends", "it") } else { ("they end", "them") };
            text.push_str(&format!(
                "; {stay} with the tenants of {user}, and downloaded kubeconfigs work until {end} ('comity lease release' \
                 ends {them})"
            ));
        }
        if self.none_may_invite {
            text.push_str(&format!(
                "; nobody with a certificate is left who may invite {user} again, because a broker operator is invited only \
                 by a maintainer who is one too: to have one, add another id to `maintainers` and `brokerOperators` on a \
                 broker's machine, with the broker's own certificate ('comity --identity DATA/identity policy apply \
                 DIRECTORY')"
            ));
        }
        text
    }
}

impl Answer for RevokedUser {
    fn table(&self, _now_ms: u64) -> Sheet {
        let prefix = if self.dry_run { "dry run, nothing was changed: " } else { "" };
        format!("{prefix}{}", self.consequence()).as_str().into()
    }
}

/// `comity user add`.
#[derive(Debug, Args)]
pub struct UserAddArgs {
    /// Name of the user, as in policy documents after `/user/`
    #[arg(value_name = "NAME")]
    user: UserName,
    /// Make the user a member of this tenant in the policy in force
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Role in the tenant
    #[arg(long, value_enum, default_value_t = MemberRole::Submitter, value_name = "ROLE", requires = "tenant")]
    role: MemberRole,
    #[command(flatten)]
    confirm: ConfirmArgs,
    /// Lifetime of the token: 1m to 7d
    #[arg(long, default_value = "1h", value_parser = DurationBounds::TOKEN.parser(), allow_hyphen_values = true,
        value_name = "DURATION")]
    ttl: u64,
    /// Key that makes a repeated call safe: the same key creates no second token [default: random]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

/// Role of a tenant's member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MemberRole {
    /// Sees requests and leases
    Viewer,
    /// Submits requests and uses leases
    Submitter,
    /// Does the same with those of other members
    Admin,
}

impl From<MemberRole> for TenantRole {
    fn from(role: MemberRole) -> Self {
        match role {
            MemberRole::Viewer => Self::Viewer,
            MemberRole::Submitter => Self::Submitter,
            MemberRole::Admin => Self::Admin,
        }
    }
}

impl UserCommand {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// [`Failure`] of the call, or if standard output cannot be written.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        match self {
            Self::Add(args) => args.run(session).await,
            Self::Revoke(args) => args.run(session).await,
        }
    }
}

impl UserRevokeArgs {
    async fn run(&self, session: &Session) -> Result<(), Failure> {
        if self.dry_run {
            return session.print(&self.revoke(session, true).await?);
        }
        if self.confirm.asks() {
            let preview = self.revoke(session, true).await?;
            self.confirm.ask_about(&preview.consequence())?;
        }
        session.print(&self.revoke(session, false).await?)
    }

    async fn revoke(&self, session: &Session, dry_run: bool) -> Result<RevokedUser, Failure> {
        let user = self.user.to_string();
        // A preview is no use of the caller's key.
        let key = if dry_run { None } else { self.idempotency_key.as_deref() };
        let request = v1::RevokeUserRequest {
            user: user.clone(),
            idempotency_key: idempotency_key(key),
            dry_run,
            allow_unknown: self.allow_unknown,
            leases: v1::LeaseTreatment::from(Treatment::from(self.leases)).into(),
        };
        let response = call(FederationServiceClient::new(session.channel()?).revoke_user(request)).await?;
        let v1::RevokeUserResponse { invitations, tenant_leases, effects, none_may_invite } = response;
        let effects = effects.unwrap_or_default();
        Ok(RevokedUser {
            user,
            dry_run,
            invitations,
            tenant_leases,
            submitted_leases: effects.leases,
            starting: effects.starting,
            requests: effects.requests,
            none_may_invite,
            ends: what_ends(self.leases.into(), &effects),
        })
    }
}

impl UserAddArgs {
    async fn run(&self, session: &Session) -> Result<(), Failure> {
        let channel = session.channel()?;
        let id = SpiffeId::user(session.caller()?.id().trust_domain().clone(), self.user.clone());
        let mut changed = false;
        if let Some(tenant) = &self.tenant {
            changed = edit_in_force(session, channel.clone(), &self.confirm, |source| {
                Ok(add_member(source, tenant, &id.to_string(), self.role.into())?)
            })
            .await?;
        }
        let request = v1::InviteUserRequest {
            user: self.user.to_string(),
            ttl_ms: self.ttl,
            idempotency_key: idempotency_key(self.idempotency_key.as_deref()),
        };
        let invited = call(FederationServiceClient::new(channel.clone()).invite_user(request)).await;
        if changed && invited.is_err() {
            note_that_policy_stays_changed();
        }
        let response = invited?;
        note(&roles_of(channel, &id).await);
        note(&format!("single-use token, expires in {}:", format_duration(self.ttl)));
        let text = InvitationText::for_standard_output();
        NewInvitation::new(Invited::User(self.user.to_string()), response.token, response.expires_at_ms, text)
            .print(session)
    }
}

/// The roles that the bundle in force gives a user, as one sentence.
async fn roles_of(channel: BrokerChannel, id: &SpiffeId) -> String {
    let source = match bundle_in_force(channel).await {
        Ok(bundle) => bundle.source,
        Err(failure) => return format!("the roles of {id} are unknown: {}", failure.reason),
    };
    match Bundle::compile(&source) {
        Ok(bundle) => roles_text(id, &bundle.roles_of(&id.to_string())),
        Err(_) => format!("the roles of {id} are unknown: this version of comity cannot read the bundle in force"),
    }
}

fn roles_text(id: &SpiffeId, roles: &Roles) -> String {
    if roles.is_empty() {
        return format!(
            "policy gives {id} no role yet: repeat the command with --tenant TENANT, or add '{{id: {id}, role: submitter}}' \
             to the members of a Tenant document"
        );
    }
    let mut parts = Vec::new();
    if roles.federation_admin {
        parts.push("maintainer of the federation".to_owned());
    }
    if roles.broker_operator {
        parts.push("broker operator".to_owned());
    }
    if roles.planner {
        parts.push("planner".to_owned());
    }
    parts.extend(roles.institutions_operated.iter().map(|name| format!("operator of {name}")));
    parts.extend(roles.tenants.iter().map(|(tenant, role)| format!("{} of tenant {tenant}", role.as_str())));
    format!("policy makes {id}: {}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn revoked(invitations: u32, tenant_leases: u32, ends: Vec<String>) -> RevokedUser {
        let user = "alice".to_owned();
        RevokedUser {
            user,
            dry_run: false,
            invitations,
            tenant_leases,
            submitted_leases: 0,
            starting: 0,
            requests: 0,
            none_may_invite: false,
            ends,
        }
    }

    #[test]
    fn a_revocation_says_what_it_leaves() {
        let text = |invitations, leases| revoked(invitations, leases, Vec::new()).consequence();
        assert_eq!(text(0, 0), "all certificates of alice are void");
        assert_eq!(
            text(1, 1),
            "all certificates of alice are void, and so is 1 open invitation; 1 lease stays with \
             the tenants of alice, and downloaded kubeconfigs work until it ends ('comity lease release' ends it)"
        );
        assert_eq!(text(2, 0), "all certificates of alice are void, and so are 2 open invitations");
        let last = RevokedUser { none_may_invite: true, ..revoked(0, 0, Vec::new()) }.consequence();
        assert!(last.contains("nobody with a certificate is left who may invite alice again"), "{last}");
        assert!(last.contains("comity --identity DATA/identity policy apply DIRECTORY"), "{last}");
        let effects = v1::RevocationEffects { leases: 2, requests: 1, ..v1::RevocationEffects::default() };
        assert_eq!(
            revoked(0, 0, what_ends(OwnLeases::Drain.into(), &effects)).consequence(),
            "all certificates of alice are void; of what alice submitted, 2 leases end after the donor's notice, and 1 \
             waiting request is cancelled"
        );
    }

    #[test]
    fn roles_are_named_or_how_to_get_one() {
        let id: SpiffeId = "spiffe://dev.test/user/alice".parse().expect("valid");
        let text = roles_text(&id, &Roles::default());
        assert!(text.contains("no role yet") && text.contains("'{id: spiffe://dev.test/user/alice,"), "{text}");
        let roles = Roles {
            federation_admin: true,
            broker_operator: true,
            planner: false,
            institutions_operated: BTreeSet::from(["polytechnic".to_owned()]),
            tenants: BTreeMap::from([("poly-ml".to_owned(), TenantRole::Submitter)]),
        };
        assert_eq!(
            roles_text(&id, &roles),
            "policy makes spiffe://dev.test/user/alice: maintainer of the federation, broker operator, \
             operator of polytechnic, submitter of tenant poly-ml"
        );
    }
}
