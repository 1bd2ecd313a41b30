//! `comity cluster invite`.

use clap::Args;
use comity_policy::{Bundle, Enrolment, enrol_cluster, nearest};
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_runtime::BrokerChannel;

use crate::commands::completions::known_ids;
use crate::commands::invitation::new_invitation::{InvitationText, Invited, NewInvitation};
use crate::commands::policy::{edit_in_force, note_that_policy_stays_changed};
use crate::confirm::ConfirmArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::note;
use crate::session::{Session, call, idempotency_key};
use crate::units::{DurationBounds, format_duration};

const INVITE_EXAMPLES: &str = "\
Examples:
  comity cluster invite physics-farm           prints the command that joins it
  comity cluster invite physics-farm --enroll  also adds it to the policy
  comity cluster invite physics-farm --ttl 24h > join.token

The token is a secret that works once. In a pipe or a file it stands alone.
'comity invitation revoke' takes it back.
Policy must list the cluster; --enroll adds it to the bundle in force, with all
GPU classes, and asks if that changes anything.
";

/// `comity cluster invite`.
#[derive(Debug, Args)]
#[command(after_help = INVITE_EXAMPLES)]
pub struct ClusterInviteArgs {
    /// Cluster that may join with the token
    #[arg(add = known_ids::policy_clusters())]
    cluster: String,
    /// Lifetime of the token: 1m to 7d
    #[arg(long, default_value = "1h", value_parser = DurationBounds::TOKEN.parser(), allow_hyphen_values = true,
        value_name = "DURATION")]
    ttl: u64,
    /// Replace the agent of a member; its leases end when an agent with another identity key joins, such as one whose
    /// state was lost
    #[arg(long)]
    replace: bool,
    /// Add the cluster to the policy in force first, if it is not there
    #[arg(long)]
    enroll: bool,
    /// Institution of the cluster [default: the one that you operate]
    #[arg(long, value_name = "INSTITUTION", requires = "enroll")]
    institution: Option<String>,
    /// Add the institution to the policy, too, if it is not there
    #[arg(long, requires = "institution")]
    new_institution: bool,
    #[command(flatten)]
    confirm: ConfirmArgs,
    /// Key that makes a repeated call safe: the same key creates no second token [default: random]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

impl ClusterInviteArgs {
    pub(super) async fn run(&self, session: &Session) -> Result<(), Failure> {
        let channel = session.channel()?;
        let changed = self.enroll && self.enrol(session, channel.clone()).await?;
        let mut client = FederationServiceClient::new(channel);
        let request = v1::InviteClusterRequest {
            cluster: self.cluster.clone(),
            ttl_ms: self.ttl,
            replace: self.replace,
            idempotency_key: idempotency_key(self.idempotency_key.as_deref()),
        };
        let invited = call(client.invite_cluster(request)).await;
        if changed && invited.is_err() {
            note_that_policy_stays_changed();
        }
        let response = invited?;
        note(&format!("single-use token, expires in {}:", format_duration(self.ttl)));
        let text = InvitationText::for_standard_output();
        NewInvitation::new(Invited::Cluster(self.cluster.clone()), response.token, response.expires_at_ms, text)
            .print(session)
    }

    /// Adds the cluster to the bundle in force; returns whether that changed it.
    async fn enrol(&self, session: &Session, channel: BrokerChannel) -> Result<bool, Failure> {
        let user = session.caller()?.id().to_string();
        edit_in_force(session, channel, &self.confirm, |source| {
            let bundle = Bundle::compile(source).map_err(|problems| {
                Failure::refused(
                    "bad-policy",
                    format!("this version of comity finds {} problems in the bundle in force", problems.len()),
                )
            })?;
            let institution = self.institution_in(&bundle, &user)?;
            let enrolment = Enrolment { cluster: &self.cluster, institution: &institution, user: &user };
            Ok(enrol_cluster(source, &enrolment)?)
        })
        .await
    }

    /// The given institution, that of the cluster, or the only one that the caller operates.
    fn institution_in(&self, bundle: &Bundle, user: &str) -> Result<String, Failure> {
        if let Some(institution) = &self.institution {
            self.check_known(bundle, institution)?;
            return Ok(institution.clone());
        }
        if let Some(institution) = bundle.institution_of_cluster(&self.cluster) {
            return Ok(institution.to_owned());
        }
        let operated = bundle.roles_of(user).institutions_operated;
        match operated.iter().collect::<Vec<_>>()[..] {
            [institution] => Ok(institution.clone()),
            [] => Err(Failure::usage("you operate no institution, so the cluster's is unknown")
                .remedy("give it with --institution INSTITUTION; for a new one, add --new-institution")),
            _ => Err(Failure::usage("you operate several institutions, so the cluster's is unknown")
                .remedy(format!("give one of them with --institution: {}", Vec::from_iter(operated).join(", ")))),
        }
    }

    /// Keeps a misspelt name from becoming an institution.
    fn check_known(&self, bundle: &Bundle, institution: &str) -> Result<(), Failure> {
        if self.new_institution || bundle.institutions.contains_key(institution) {
            return Ok(());
        }
        let known = bundle.institutions.keys().map(String::as_str);
        let remedy = match nearest(institution, known) {
            Some(name) => format!("did you mean {name}? For a new institution, add --new-institution"),
            None => "for a new institution, add --new-institution".to_owned(),
        };
        let reason = format!("the policy in force has no institution {institution}");
        Err(Failure::new(Exit::NotFound, "not-found", reason).field("--institution", institution).remedy(remedy))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use comity_policy::minimal_bundle;

    use super::*;

    #[derive(clap::Parser)]
    struct InviteLine {
        #[command(flatten)]
        invite: ClusterInviteArgs,
    }

    fn institution(line: &str, user: &str) -> Result<String, Failure> {
        let source = minimal_bundle("dev.test", "home", "spiffe://dev.test/user/ingrid");
        let enrolment = Enrolment { cluster: "a", institution: "away", user: "spiffe://dev.test/user/alice" };
        let source = enrol_cluster(&source, &enrolment).expect("edited");
        let args = InviteLine::try_parse_from(line.split(' ')).expect("parsed").invite;
        args.institution_in(&Bundle::compile(&source).expect("valid"), user)
    }

    #[test]
    fn the_institution_is_given_known_or_the_callers_only_one() {
        let ingrid = "spiffe://dev.test/user/ingrid";
        assert_eq!(institution("invite b --enroll", ingrid).as_deref(), Ok("home"));
        assert_eq!(institution("invite a --enroll", ingrid).as_deref(), Ok("away"));
        assert_eq!(institution("invite b --enroll --institution away", ingrid).as_deref(), Ok("away"));
        let stranger = institution("invite b --enroll", "spiffe://dev.test/user/eve").expect_err("unknown");
        assert!(stranger.remedy.contains("--institution"), "{stranger}");
        assert!(InviteLine::try_parse_from("invite b --institution new".split(' ')).is_err());
    }

    #[test]
    fn a_misspelt_institution_is_not_a_new_one() {
        let ingrid = "spiffe://dev.test/user/ingrid";
        let misspelt = institution("invite b --enroll --institution hoem", ingrid).expect_err("unknown");
        assert_eq!((misspelt.exit, misspelt.field.as_str()), (Exit::NotFound, "--institution"));
        assert_eq!(misspelt.remedy, "did you mean home? For a new institution, add --new-institution");
        let other = institution("invite b --enroll --institution polytechnic", ingrid).expect_err("unknown");
        assert_eq!(other.remedy, "for a new institution, add --new-institution");
        for name in ["new", "home"] {
            let line = format!("invite b --enroll --institution {name} --new-institution");
            assert_eq!(institution(&line, ingrid).as_deref(), Ok(name), "a repeated command changes nothing");
        }
    }
}
