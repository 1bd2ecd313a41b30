//! Broker processes on the loopback: kills, failover, log output and `comity-broker up`.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs::{self, File, Permissions};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use comity_testkit::timing::in_time;

const SOON: Duration = Duration::from_secs(30);

fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_comity-broker"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("COMITY_BROKER_") {
            command.env_remove(name);
        }
    }
    command
}

struct Processes {
    dir: tempfile::TempDir,
    /// Raft, client and admin port of each.
    ports: Vec<[u16; 3]>,
    running: Vec<Option<Child>>,
}

impl Processes {
    /// Makes a federation of three and starts none.
    fn prepare() -> Self {
        let listeners: Vec<_> = (0..9).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let numbers: Vec<u16> = listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        let ports: Vec<[u16; 3]> = numbers.chunks(3).map(|three| three.try_into().unwrap()).collect();
        let processes = Self {
            dir: tempfile::tempdir().unwrap(),
            ports,
            running: std::iter::repeat_with(|| None).take(3).collect(),
        };
        let members = processes.ports.iter().enumerate();
        let members = members.map(|(at, [raft, client, _])| format!("{}=127.0.0.1:{raft}/127.0.0.1:{client}", at + 1));
        let (first, admin) = (processes.data(0), processes.dir.path().join("admin"));
        let mut init = binary();
        init.args(["init", "--trust-domain", "processes.test", "--members", &members.collect::<Vec<_>>().join(",")]);
        init.arg("--data").arg(&first).arg("--admin-out").arg(admin);
        good(&init.output().unwrap());
        for at in 1..3 {
            let mut add = binary();
            add.args(["add-identity", "--id", &(at + 1).to_string(), "--data"]).arg(&first);
            good(&add.arg("--out").arg(processes.data(at)).output().unwrap());
        }
        processes
    }

    fn three() -> Self {
        let mut processes = Self::prepare();
        for at in 0..3 {
            processes.start(at);
        }
        processes
    }

    fn data(&self, at: usize) -> PathBuf {
        self.dir.path().join(format!("broker-{}", at + 1))
    }

    fn log(&self, at: usize) -> String {
        fs::read_to_string(self.dir.path().join(format!("{at}.log"))).unwrap_or_default()
    }

    fn run(&self, at: usize) -> Command {
        let [raft, client, admin] = self.ports[at];
        let mut run = binary();
        run.arg("run").arg("--data").arg(self.data(at));
        for (flag, port) in [("--raft-listen", raft), ("--client-listen", client), ("--admin-listen", admin)] {
            run.args([flag, &format!("127.0.0.1:{port}")]);
        }
        run
    }

    fn start(&mut self, at: usize) {
        let log = File::options().create(true).append(true).open(self.dir.path().join(format!("{at}.log"))).unwrap();
        self.running[at] = Some(self.run(at).stdout(Stdio::null()).stderr(log).spawn().unwrap());
    }

    /// SIGKILL.
    fn kill(&mut self, at: usize) {
        let mut child = self.running[at].take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn get(&self, at: usize, path: &str) -> Option<String> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.ports[at][2]));
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    fn leads(&self, at: usize) -> bool {
        let metrics = self.running[at].as_ref().and_then(|_| self.get(at, "/metrics")).unwrap_or_default();
        metrics.lines().any(|line| line == "comity_broker_leader 1")
    }

    fn is_ready(&self, at: usize) -> bool {
        self.get(at, "/readyz").is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
    }

    fn leader(&self) -> usize {
        wait("a leader", || (0..3).find(|at| self.leads(*at)))
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in self.running.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            for at in 0..3 {
                eprintln!("broker {}:\n{}", at + 1, self.log(at));
            }
        }
    }
}

fn good(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + SOON;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what}: not within {} s", SOON.as_secs());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_killed_leader_is_replaced_well_within_a_second() {
    in_time(|| {
        let mut processes = Processes::three();
        for round in 0..3 {
            let leader = processes.leader();
            wait("all to be ready", || (0..3).all(|at| processes.is_ready(at)).then_some(()));
            std::thread::sleep(Duration::from_millis(500));
            let killed = Instant::now();
            processes.kill(leader);
            wait("another leader", || (0..3).find(|at| *at != leader && processes.leads(*at)));
            let took = killed.elapsed();
            println!("round {round}: {took:?}");
            // The lease alone is 0.8 s, and an election that waits for it takes 1.2 s at least.
            assert!(took < Duration::from_millis(900), "round {round}: {took:?}");
            processes.start(leader);
        }
    });
}

#[test]
fn an_outage_is_told_in_a_few_lines() {
    in_time(|| {
        let mut processes = Processes::three();
        let leader = processes.leader();
        let [first, second] = [(leader + 1) % 3, (leader + 2) % 3];
        wait("all to be ready", || (0..3).all(|at| processes.is_ready(at)).then_some(()));
        std::thread::sleep(Duration::from_secs(1));
        let lines = |processes: &Processes| processes.log(leader).lines().count();

        // One broker is down: the group goes on.
        let before = lines(&processes);
        processes.kill(first);
        std::thread::sleep(Duration::from_secs(6));
        let told = lines(&processes) - before;
        assert!((1..=4).contains(&told), "{told} lines in 6 s with one broker down");
        assert!(processes.log(leader).contains("broker not reached"), "nobody says which broker is down");

        // No majority: the leader leads no more, and says so.
        let before = lines(&processes);
        processes.kill(second);
        wait("the leader to step down", || (!processes.leads(leader) && !processes.is_ready(leader)).then_some(()));
        std::thread::sleep(Duration::from_secs(6));
        let told = lines(&processes) - before;
        assert!((1..=12).contains(&told), "{told} lines in 6 s without a majority");
        assert!(processes.log(leader).contains("no majority of the voters answers"), "nobody says why");

        processes.start(first);
        let next = processes.leader();
        // The old leader says that it reaches a broker again; a new one, which broker it does not reach.
        let change = if next == leader { "broker reached again" } else { "broker not reached" };
        wait("the leader to say whom it reaches", || processes.log(next).contains(change).then_some(()));
    });
}

#[test]
fn what_a_broker_writes_is_its_own_and_what_others_can_read_is_refused() {
    let mut processes = Processes::three();
    processes.leader();
    let wal = fs::read_dir(processes.data(0).join("group/log")).unwrap().flatten();
    let wal: Vec<_> = wal.filter(|entry| entry.path().extension().is_some_and(|found| found == "wal")).collect();
    assert!(!wal.is_empty());
    for file in wal {
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", file.path());
    }
    processes.kill(0);
    let data = processes.data(0);
    fs::set_permissions(&data, Permissions::from_mode(0o777)).unwrap();
    let refused = processes.run(0).output().unwrap();
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(64), "{text}");
    assert!(text.contains(&format!("run: chmod go= {}", data.display())), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

/// `comity-broker up` with a home of its own.
struct Host {
    dir: tempfile::TempDir,
    ports: Vec<u16>,
    running: Option<Child>,
}

impl Host {
    fn new() -> Self {
        let listeners: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports = listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        Self { dir: tempfile::tempdir().unwrap(), ports, running: None }
    }

    fn up(&self, arguments: &[&str]) -> Command {
        let mut up = binary();
        up.arg("up").arg("--data").arg(self.dir.path().join("data")).args(["--address", "127.0.0.1"]);
        for (flag, port) in ["--client-listen", "--raft-listen", "--admin-listen"].into_iter().zip(&self.ports) {
            up.args([flag, &format!("127.0.0.1:{port}")]);
        }
        up.args(arguments).env("XDG_CONFIG_HOME", self.dir.path().join("config")).env_remove("SUDO_USER");
        up
    }

    /// Starts the broker, waits until it is ready, and returns its messages.
    fn ready(&mut self, arguments: &[&str]) -> String {
        let (said, log) = (self.dir.path().join("said"), self.dir.path().join("log"));
        let mut up = self.up(arguments);
        let up = up.stdout(File::create(&said).unwrap()).stderr(File::create(&log).unwrap());
        self.running = Some(up.spawn().unwrap());
        wait("the broker to be ready", || {
            let said = fs::read_to_string(&said).unwrap();
            said.contains("next: comity raft invite").then_some(said)
        })
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.running.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("{}", fs::read_to_string(self.dir.path().join("log")).unwrap_or_default());
        }
    }
}

#[test]
fn up_founds_a_federation_with_a_policy_and_a_context_and_later_only_starts() {
    let mut host = Host::new();
    let chosen = ["--trust-domain", "up.test", "--admin", "ingrid"];
    let planned = host.up(&[&chosen[..], &["--dry-run"]].concat()).output().unwrap();
    good(&planned);
    let planned = String::from_utf8_lossy(&planned.stdout).into_owned();
    assert!(planned.contains("trust domain    up.test") && planned.contains("institution     up"), "{planned}");
    assert!(!host.dir.path().join("data").exists(), "a dry run writes nothing");

    let said = host.ready(&chosen);
    assert!(said.contains("applied the minimal policy") && said.contains("broker 1 is ready"), "{said}");
    let settings = host.dir.path().join("config/comity");
    let context = fs::read_to_string(settings.join("contexts/up.test/context.json")).unwrap();
    assert!(context.contains(&format!("127.0.0.1:{}", host.ports[0])), "{context}");
    assert_eq!(fs::read_to_string(settings.join("current-context")).unwrap(), "up.test\n");
    assert!(!host.dir.path().join("data/admin").exists(), "the admin's key has one place");

    host.kill();
    let said = host.ready(&["--join", "comity-join-v1.any"]);
    assert!(said.contains("the token is not used") && said.contains("broker 1 is ready"), "{said}");
    assert!(!said.contains("applied the minimal policy"), "{said}");
}

#[test]
fn up_makes_nothing_if_a_port_is_taken_and_continues_what_was_interrupted() {
    let mut host = Host::new();
    let chosen = ["--trust-domain", "up.test", "--admin", "ingrid"];
    for (port, flag) in host.ports.clone().into_iter().zip(["--client-listen", "--raft-listen", "--admin-listen"]) {
        let _taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let refused = host.up(&chosen).output().unwrap();
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{text}");
        assert!(text.contains(flag) && text.contains("nothing was set up"), "{text}");
        assert!(!host.dir.path().join("data").exists(), "nothing was made");
    }
    // Killed while it made the authority.
    let half = host.dir.path().join("data/.setup/ca");
    fs::create_dir_all(&half).unwrap();
    fs::write(half.join("ca.crt"), "half").unwrap();
    fs::set_permissions(host.dir.path().join("data"), Permissions::from_mode(0o700)).unwrap();
    let said = host.ready(&chosen);
    assert!(said.contains("applied the minimal policy"), "{said}");
    assert!(!host.dir.path().join("data/.setup").exists());
}

#[test]
fn up_refuses_bad_input_in_one_sentence_without_the_token() {
    let host = Host::new();
    let secret = "SECRETsecretSECRET";
    let token = format!("comity-join-v1.{secret}");
    for (arguments, expected) in [
        (vec!["--join", token.as_str()], "cut off or damaged"),
        (vec!["--join", "/nonexistent/token"], "/nonexistent/token"),
        (vec![token.as_str()], "unexpected argument"),
        (vec!["--institution", "A B"], "--institution"),
        (vec!["--admin", "a b"], "--admin"),
        (vec!["--institution", token.as_str()], "--institution <NAME> is a join token"),
        (vec!["--join", ""], "the text is empty"),
    ] {
        let refused = host.up(&arguments).output().unwrap();
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(64), "{text}");
        assert!(text.contains(expected) && !text.contains(secret), "{text}");
    }
    assert!(!host.dir.path().join("data").exists(), "nothing was written");
}
