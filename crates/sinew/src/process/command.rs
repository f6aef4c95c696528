//! How a child is started.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;

use super::{Child, CommandArgs, CommandEnvs, ExitStatus, Output, Stdio, spawner};

/// A program to be run as a child process, and how. As [`std::process::Command`], with the methods of [`CommandExt`].
///
/// # Examples
/// ```
/// use std::io::Write;
/// use sinew::process::{Command, Stdio};
///
/// let mut sort = Command::new("sort").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
/// sort.stdin.take().unwrap().write_all(b"pear\napple\n")?;
/// let output = sort.wait_with_output()?;
/// assert_eq!(output.stdout, b"apple\npear\n");
/// # std::io::Result::Ok(())
/// ```
pub struct Command {
    std: std::process::Command,
    /// Which of input, output and errors the user has said something about.
    stdin_set: bool,
    stdout_set: bool,
    stderr_set: bool,
}

impl Command {
    /// A command that runs `program`: a path, or a name to be looked for in `PATH`.
    pub fn new<S: AsRef<OsStr>>(program: S) -> Self {
        Self { std: std::process::Command::new(program), stdin_set: false, stdout_set: false, stderr_set: false }
    }

    /// Adds one argument.
    pub fn arg<S: AsRef<OsStr>>(&mut self, arg: S) -> &mut Self {
        self.std.arg(arg);
        self
    }

    /// Adds several arguments.
    pub fn args<I, S>(&mut self, args: I) -> &mut Self
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        self.std.args(args);
        self
    }

    /// Sets a variable of the child's environment.
    pub fn env<K: AsRef<OsStr>, V: AsRef<OsStr>>(&mut self, key: K, value: V) -> &mut Self {
        self.std.env(key, value);
        self
    }

    /// Sets several variables of the child's environment.
    pub fn envs<I, K, V>(&mut self, variables: I) -> &mut Self
    where
        I: IntoIterator<Item = (K, V)>,
        K: AsRef<OsStr>,
        V: AsRef<OsStr>,
    {
        self.std.envs(variables);
        self
    }

    /// Takes a variable out of the child's environment.
    pub fn env_remove<K: AsRef<OsStr>>(&mut self, key: K) -> &mut Self {
        self.std.env_remove(key);
        self
    }

    /// Empties the child's environment: it inherits nothing.
    pub fn env_clear(&mut self) -> &mut Self {
        self.std.env_clear();
        self
    }

    /// Sets the directory in which the child starts.
    pub fn current_dir<P: AsRef<Path>>(&mut self, directory: P) -> &mut Self {
        self.std.current_dir(directory);
        self
    }

    /// Says where the child reads from. If nothing is said: where this process does, or from nowhere with [`output`](Self::output).
    pub fn stdin<T: Into<Stdio>>(&mut self, stdin: T) -> &mut Self {
        self.std.stdin(stdin);
        self.stdin_set = true;
        self
    }

    /// Says where the child writes to. If nothing is said: where this process does, or for the caller with [`output`](Self::output).
    pub fn stdout<T: Into<Stdio>>(&mut self, stdout: T) -> &mut Self {
        self.std.stdout(stdout);
        self.stdout_set = true;
        self
    }

    /// Says where the child writes errors to. If nothing is said: as with [`stdout`](Self::stdout).
    pub fn stderr<T: Into<Stdio>>(&mut self, stderr: T) -> &mut Self {
        self.std.stderr(stderr);
        self.stderr_set = true;
        self
    }

    /// Sets the child's user.
    pub fn uid(&mut self, user: u32) -> &mut Self {
        self.std.uid(user);
        self
    }

    /// Sets the child's group.
    pub fn gid(&mut self, group: u32) -> &mut Self {
        self.std.gid(group);
        self
    }

    /// Sets the name by which the child is called, its argument zero.
    pub fn arg0<S: AsRef<OsStr>>(&mut self, name: S) -> &mut Self {
        self.std.arg0(name);
        self
    }

    /// Sets the child's group of processes; `0` is one of its own.
    pub fn process_group(&mut self, group: i32) -> &mut Self {
        self.std.process_group(group);
        self
    }

    /// Has `f` called in the child before the program is run.
    ///
    /// # Safety
    /// As [`CommandExt::pre_exec`]: `f` runs in a forked child, where other threads' locks may be held for ever, and nothing of this crate can be used.
    pub unsafe fn pre_exec<F>(&mut self, f: F) -> &mut Self
    where
        F: FnMut() -> io::Result<()> + Send + Sync + 'static,
    {
        // SAFETY: the caller's promise.
        unsafe { self.std.pre_exec(f) };
        self
    }

    /// Runs the program in the place of this process, with all its fibers and threads; returns only if that fails.
    pub fn exec(&mut self) -> io::Error {
        self.std.exec()
    }

    /// Starts the child.
    ///
    /// In a fiber, the start is made by one of a few threads that stay as long as this process; so a child that is to die with its parent (`PR_SET_PDEATHSIG`) does not die before. One start that takes long
    /// ([`pre_exec`](Self::pre_exec) that waits) holds up no other; eight at a time do.
    ///
    /// # Suspends
    /// Yes, until the program is loaded, or that has failed. A [cancel point](crate::cancelled) at its entry: once begun it is not cut short.
    ///
    /// # Errors
    /// The system's: `NotFound` if there is no such program. And as every cancel point.
    #[track_caller]
    pub fn spawn(&mut self) -> io::Result<Child> {
        spawner::spawn(&mut self.std).map(Child::new)
    }

    /// Runs the child to its end; gives how it ended.
    ///
    /// # Suspends
    /// Yes, until the child ends. A [cancel point](crate::cancelled): cut short, it kills the child, which nobody else could.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn).
    #[track_caller]
    pub fn status(&mut self) -> io::Result<ExitStatus> {
        self.spawn()?.wait_or_kill()
    }

    /// Runs the child to its end; gives how it ended, and what it wrote.
    ///
    /// # Suspends
    /// Yes, until the child ends. A [cancel point](crate::cancelled): cut short, it kills the child, which nobody else could, and what was written is lost.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn).
    #[track_caller]
    pub fn output(&mut self) -> io::Result<Output> {
        self.set_unset(Stdio::null, Stdio::piped);
        let child = self.spawn();
        // As it was said, or not: for the next call.
        self.set_unset(Stdio::inherit, Stdio::inherit);
        child?.wait_with_output()
    }

    /// Sets what the user has said nothing about.
    fn set_unset(&mut self, stdin: fn() -> Stdio, others: fn() -> Stdio) {
        if !self.stdin_set {
            self.std.stdin(stdin());
        }
        if !self.stdout_set {
            self.std.stdout(others());
        }
        if !self.stderr_set {
            self.std.stderr(others());
        }
    }

    /// Gives the program.
    pub fn get_program(&self) -> &OsStr {
        self.std.get_program()
    }

    /// Gives the arguments.
    pub fn get_args(&self) -> CommandArgs<'_> {
        self.std.get_args()
    }

    /// Gives the variables that are set, or taken out.
    pub fn get_envs(&self) -> CommandEnvs<'_> {
        self.std.get_envs()
    }

    /// Gives the directory, if one was set.
    pub fn get_current_dir(&self) -> Option<&Path> {
        self.std.get_current_dir()
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.std.fmt(f)
    }
}
