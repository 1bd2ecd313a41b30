//! `comity cluster voucher`: an institution's signature over the identity key of its cluster. No broker takes part.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use comity_runtime::{ClusterName, IdentityKey, IdentityPublicKey, IdentitySignature, SystemEntropy, private_files};
use comity_types::InstitutionId;
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{Answer, Sheet, fields};
use crate::session::Session;

const VOUCHER_EXAMPLES: &str = "\
Examples:
  comity cluster voucher key institution.key
  comity cluster voucher create --cluster ncc-main --institution national-centre \\
    --identity-key ed25519:... --signing-key institution.key
  comity cluster voucher check ed25519:... --cluster ncc-main \\
    --institution national-centre --identity-key ed25519:... --key ed25519:...
";
const KEY_EXAMPLES: &str = "\
Examples:
  comity cluster voucher key institution.key     makes the file if it is missing

The printed half goes into signingKeys of the Institution document, and into
pinnedInstitutions of other clusters' agents. Keep the file offline.
";
const CREATE_EXAMPLES: &str = "\
Examples:
  comity cluster voucher create --cluster ncc-main --institution national-centre \\
    --identity-key ed25519:... --signing-key institution.key

'comity-agent identity-key' prints the identity key on the cluster. The voucher
goes into the field voucher of its agent's configuration.
";
const VOUCHER_CHECK_EXAMPLES: &str = "\
Examples:
  comity cluster voucher check ed25519:... --cluster ncc-main \\
    --institution national-centre --identity-key ed25519:... --key ed25519:...
";

/// `comity cluster voucher`.
#[derive(Debug, Subcommand)]
#[command(after_help = VOUCHER_EXAMPLES)]
pub enum VoucherCommand {
    /// Print the public half of an institution's signing key; make the key if it is missing
    Key(VoucherKeyArgs),
    /// Make a voucher, with the institution's signing key
    Create(VoucherCreateArgs),
    /// Check a voucher, with public keys of the institution
    Check(VoucherCheckArgs),
}

/// `comity cluster voucher key`.
#[derive(Debug, Args)]
#[command(after_help = KEY_EXAMPLES)]
pub struct VoucherKeyArgs {
    /// File with the signing key, PKCS #8 PEM; never replaced
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// What a voucher is about.
#[derive(Debug, Args)]
struct VoucherSubject {
    /// Cluster, as in ncc-main
    #[arg(long, value_parser = cluster_name)]
    cluster: ClusterName,
    /// Institution of the cluster
    #[arg(long, value_parser = institution_name)]
    institution: InstitutionId,
    /// Identity key of the cluster's agent, as comity-agent identity-key prints it
    #[arg(long, value_name = "KEY")]
    identity_key: IdentityPublicKey,
}

/// `comity cluster voucher create`.
#[derive(Debug, Args)]
#[command(after_help = CREATE_EXAMPLES)]
pub struct VoucherCreateArgs {
    #[command(flatten)]
    subject: VoucherSubject,
    /// File with the institution's signing key
    #[arg(long, value_name = "FILE")]
    signing_key: PathBuf,
}

/// `comity cluster voucher check`.
#[derive(Debug, Args)]
#[command(after_help = VOUCHER_CHECK_EXAMPLES)]
pub struct VoucherCheckArgs {
    /// The voucher
    voucher: IdentitySignature,
    #[command(flatten)]
    subject: VoucherSubject,
    /// Public signing key of the institution; may be repeated
    #[arg(long, value_name = "KEY", required = true)]
    key: Vec<IdentityPublicKey>,
}

fn cluster_name(text: &str) -> Result<ClusterName, String> {
    ClusterName::new(text).map_err(|error| error.to_string())
}

fn institution_name(text: &str) -> Result<InstitutionId, String> {
    InstitutionId::parse(text, "institution").map_err(|error| error.to_string())
}

/// The answer of `key`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SigningKeyAnswer {
    public_key: IdentityPublicKey,
}

impl Answer for SigningKeyAnswer {
    fn table(&self, _now_ms: u64) -> Sheet {
        Sheet::from(self.public_key.to_string().as_str())
    }
}

/// The answer of `create`: the voucher alone for people, so that it can be copied.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct VoucherAnswer {
    voucher: IdentitySignature,
    cluster: String,
    institution: String,
    identity_key: IdentityPublicKey,
    signed_by: IdentityPublicKey,
}

impl Answer for VoucherAnswer {
    fn table(&self, _now_ms: u64) -> Sheet {
        Sheet::from(self.voucher.to_string().as_str())
    }
}

/// The answer of `check`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct VoucherCheckAnswer {
    cluster: String,
    institution: String,
    identity_key: IdentityPublicKey,
    signed_by: IdentityPublicKey,
}

impl Answer for VoucherCheckAnswer {
    fn table(&self, _now_ms: u64) -> Sheet {
        fields(&[
            ("Cluster", self.cluster.clone()),
            ("Institution", self.institution.clone()),
            ("Identity key", self.identity_key.to_string()),
            ("Signed by", self.signed_by.to_string()),
        ])
    }
}

impl VoucherCommand {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// [`Failure`] of a key file or a voucher, or if standard output cannot be written.
    pub fn run(&self, session: &Session) -> Result<(), Failure> {
        match self {
            Self::Key(VoucherKeyArgs { file }) => {
                check_private("<FILE>", file)?;
                let key = IdentityKey::load_or_generate(file, &SystemEntropy);
                let key = key.map_err(|error| bad_key("<FILE>", file, &error))?;
                session.print(&SigningKeyAnswer { public_key: key.public() })
            }
            Self::Create(args) => session.print(&args.create()?),
            Self::Check(args) => session.print(&args.check()?),
        }
    }
}

/// Refuses a signing key that others can read: whoever has it vouches for any cluster of the institution.
fn check_private(field: &str, file: &Path) -> Result<(), Failure> {
    private_files::check(file).map_err(|error| {
        Failure::configuration(error.to_string()).field(field, file.display()).remedy(
            "run that command; if somebody else may have read the key, make another one and replace it in signingKeys \
             of the Institution document",
        )
    })
}

fn bad_key(field: &str, file: &Path, error: &comity_runtime::SigningError) -> Failure {
    Failure::configuration(error.to_string())
        .field(field, file.display())
        .remedy("name a file that comity cluster voucher key made")
}

impl VoucherCreateArgs {
    fn create(&self) -> Result<VoucherAnswer, Failure> {
        let VoucherSubject { cluster, institution, identity_key } = &self.subject;
        check_private("--signing-key", &self.signing_key)?;
        let key = IdentityKey::load(&self.signing_key);
        let key = key.map_err(|error| bad_key("--signing-key", &self.signing_key, &error))?;
        Ok(VoucherAnswer {
            voucher: key.vouch(institution.as_str(), cluster, identity_key),
            cluster: cluster.to_string(),
            institution: institution.to_string(),
            identity_key: *identity_key,
            signed_by: key.public(),
        })
    }
}

impl VoucherCheckArgs {
    fn check(&self) -> Result<VoucherCheckAnswer, Failure> {
        let VoucherSubject { cluster, institution, identity_key } = &self.subject;
        let signs = |key: &&IdentityPublicKey| {
            key.verify_voucher(institution.as_str(), cluster, identity_key, &self.voucher).is_ok()
        };
        let signed_by = self.key.iter().find(signs).ok_or_else(|| {
            let reason = format!(
                "no given key of institution {institution} made the voucher for cluster {cluster} and this identity key"
            );
            Failure::refused("bad-voucher", reason)
                .field("<VOUCHER>", self.voucher)
                .remedy("compare institution, cluster and both keys with those of comity cluster voucher create")
        })?;
        Ok(VoucherCheckAnswer {
            cluster: cluster.to_string(),
            institution: institution.to_string(),
            identity_key: *identity_key,
            signed_by: *signed_by,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use comity_runtime::SeededEntropy;

    use super::*;

    #[derive(clap::Parser)]
    struct VoucherLine {
        #[command(subcommand)]
        voucher: VoucherCommand,
    }

    fn parsed(words: &[&str]) -> VoucherCommand {
        VoucherLine::try_parse_from([&["voucher"][..], words].concat()).expect("parsed").voucher
    }

    #[test]
    fn a_voucher_is_good_for_what_it_was_made_for_only() {
        let home = tempfile::tempdir().expect("made");
        let file = home.path().join("institution.key");
        let signing = IdentityKey::load_or_generate(&file, &SystemEntropy).expect("made").public().to_string();
        let identity = IdentityKey::generate(&SeededEntropy::new(1)).public().to_string();
        let subject = |cluster, institution| {
            ["--cluster", cluster, "--institution", institution, "--identity-key", identity.as_str()]
        };
        let file = file.to_str().expect("UTF-8");
        let create = [&["create"][..], &subject("ncc-main", "national-centre")[..], &["--signing-key", file]].concat();
        let VoucherCommand::Create(create) = parsed(&create) else { panic!("create") };
        let made = create.create().expect("made");
        assert_eq!(made.signed_by.to_string(), signing);
        let voucher = made.voucher.to_string();
        let checked = |cluster, institution, key: &str| {
            let words =
                [&["check", voucher.as_str()][..], &subject(cluster, institution)[..], &["--key", key]].concat();
            let VoucherCommand::Check(check) = parsed(&words) else { panic!("check") };
            check.check()
        };
        assert_eq!(checked("ncc-main", "national-centre", &signing).expect("good").signed_by, made.signed_by);
        for (cluster, institution, key) in [
            ("ncc-test", "national-centre", signing.as_str()),
            ("ncc-main", "startup", signing.as_str()),
            ("ncc-main", "national-centre", identity.as_str()),
        ] {
            let refused = checked(cluster, institution, key).err().expect("refused");
            assert_eq!(refused.code, "bad-voucher", "{refused}");
        }
    }

    #[test]
    fn signing_key_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;

        let home = tempfile::tempdir().expect("made");
        let file = home.path().join("institution.key");
        IdentityKey::load_or_generate(&file, &SystemEntropy).expect("made");
        let identity = IdentityKey::generate(&SeededEntropy::new(1)).public().to_string();
        let subject = ["--cluster", "ncc-main", "--institution", "national-centre", "--identity-key", &identity];
        let key = ["--signing-key", file.to_str().expect("UTF-8")];
        let VoucherCommand::Create(create) = parsed(&[&["create"][..], &subject, &key].concat()) else {
            panic!("create")
        };
        for (mode, accepted) in [(0o600, true), (0o644, false), (0o604, false), (0o400, true)] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("changed");
            let made = create.create();
            assert_eq!(made.is_ok(), accepted, "{mode:o}");
            assert_eq!(check_private("<FILE>", &file).is_ok(), accepted, "{mode:o}");
            if let Err(failure) = made {
                assert_eq!(failure.field, "--signing-key");
                assert!(failure.reason.contains("chmod go="), "{failure}");
            }
        }
    }

    #[test]
    fn malformed_arguments_are_refused_by_name() {
        let identity = IdentityKey::generate(&SeededEntropy::new(1)).public().to_string();
        for (cluster, institution, key) in [
            ("No Label", "poly", identity.as_str()),
            ("lab", "No Label", identity.as_str()),
            ("lab", "poly", "ed25519:AAAA"),
        ] {
            let words =
                ["voucher", "create", "--cluster", cluster, "--institution", institution, "--identity-key", key];
            let line = VoucherLine::try_parse_from(words.into_iter().chain(["--signing-key", "k"]));
            assert!(line.is_err(), "{cluster} {institution} {key}");
        }
        let VoucherCommand::Create(create) = parsed(&[
            "create",
            "--cluster",
            "lab",
            "--institution",
            "poly",
            "--identity-key",
            &identity,
            "--signing-key",
            "/missing",
        ]) else {
            panic!("create")
        };
        assert_eq!(create.create().err().expect("no file").field, "--signing-key");
    }
}
