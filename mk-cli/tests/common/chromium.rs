//! A headless Chromium that opens a page, and says what became of it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
/// It takes a second or two; a machine may be busy.
const LONGEST: Duration = Duration::from_secs(50);

/// The command of an installed Chromium. Where there is none, tests on a developer's machine are skipped; those of `CI` fail.
pub(crate) fn find() -> Option<&'static str> {
    let starts = |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success());
    let found = NAMES.into_iter().find(starts);
    if found.is_none() {
        let ci = std::env::var_os("CI").is_some_and(|ci| !ci.is_empty());
        assert!(!ci, "CI is set, but there is no Chromium: install the package chromium");
        eprintln!("skipped: no Chromium is installed (any of {})", NAMES.join(", "));
    }
    found
}

/// A page after its scripts have run.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) dom: String,
    /// What was written to the console: errors of scripts, refused content, messages.
    pub(crate) console: Vec<String>,
}

impl Page {
    /// The text of the element that `report` has made.
    pub(crate) fn report(&self) -> serde_json::Value {
        let after = self
            .dom
            .split_once("<pre id=\"report\">")
            .unwrap_or_else(|| panic!("no report; console: {:#?}", self.console))
            .1;
        let text = after.split_once("</pre>").unwrap().0;
        let text =
            text.replace("&lt;", "<").replace("&gt;", ">").replace("&nbsp;", "\u{a0}").replace("&amp;", "&");
        serde_json::from_str(&text).unwrap()
    }
}

/// A page that is not shown hardly ever gets a frame to draw in.
const FRAMES: &str = "<script>window.requestAnimationFrame = (draw) => setTimeout(draw, 1);</script>";

/// Opens a page in a window of 1400 x 1000, with `script` after its own scripts. In it, `report(value)` hands a value back.
pub(crate) fn open(chromium: &str, folder: &Path, html: &str, script: &str) -> Page {
    let driver = format!(
        "<script>\nconst report = (value) => {{\n  const pre = document.createElement('pre');\n  pre.id = 'report';\n  \
         pre.textContent = JSON.stringify(value);\n  document.body.append(pre);\n}};\n\
         window.addEventListener('load', () => setTimeout(async () => {{\n{script}\n}}, 200));\n</script></body>"
    );
    assert_eq!(html.matches("</body>").count(), 1);
    let path = folder.join("driven.html");
    fs::write(&path, html.replace("</body>", &driver).replacen("<body>", &format!("<body>{FRAMES}"), 1))
        .unwrap();
    let (out, err) = (folder.join("dom"), folder.join("log"));
    let mut child = Command::new(chromium)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .args([
            "--enable-logging=stderr",
            "--window-size=1400,1000",
            "--virtual-time-budget=10000",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg(format!("file://{}", path.display()))
        .stdin(Stdio::null())
        .stdout(fs::File::create(&out).unwrap())
        .stderr(fs::File::create(&err).unwrap())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > LONGEST {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("Chromium did not end: {}", fs::read_to_string(&err).unwrap());
        }
        thread::sleep(Duration::from_millis(50));
    }
    let log = String::from_utf8_lossy(&fs::read(&err).unwrap()).into_owned();
    let console = log.lines().filter(|l| l.contains("CONSOLE")).map(str::to_string).collect();
    Page { dom: fs::read_to_string(&out).unwrap(), console }
}
