//! Fuzzes a broker's settings file, and the text that names its founding members.

use comity_fuzz::fuzz;

use super::*;

#[test]
fn files_of_settings() {
    let members = "1=a.test:7444/a.test:7443,2=[::1]:7444/lb.test:7443";
    let settings = Settings {
        id: 1,
        members: parse_members(members).expect("members"),
        bootstrap_admins: BTreeSet::from(["spiffe://dev.test/user/admin".to_owned()]),
        hosts: BTreeSet::from(["lb.example.org".parse().expect("a name")]),
    };
    let valid = vec![serde_json::to_vec(&settings).expect("JSON"), members.as_bytes().to_vec()];
    fuzz!("broker_settings", valid, |bytes: &[u8]| {
        let read = |text: &[u8]| Settings::parse(Path::new("broker.json"), text);
        if let Ok(text) = std::str::from_utf8(bytes)
            && let Ok(members) = parse_members(text)
        {
            return !members.is_empty();
        }
        match read(bytes) {
            Ok(settings) => {
                let text = serde_json::to_vec(&settings).expect("JSON");
                assert_eq!(read(&text).ok(), Some(settings), "what was read is written, and reads the same");
                true
            }
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("broker.json") || error.contains("is refused: "), "{error}");
                false
            }
        }
    });
}
