package failpoint

// The points of `hutch serve`, in the order of a sandbox's life. Each is named for what has
// just become true.
const (
	// The server's start.
	KeyWritten        Name = "key.written"         // the key that seals secrets on record is whole beside its place
	KeyPlaced         Name = "key.placed"          // and in its place; it is beside it still
	ServeRecordsOpen  Name = "serve.records-open"  // the records are open, and brought up to date
	ServeCompanionsUp Name = "serve.companions-up" // keeper and gateway run and answer
	ServeKeyOnRecord  Name = "serve.key-on-record" // the first key is on record; the file with it is not there
	ServeListening    Name = "serve.listening"     // its address can be read; it knows no sandbox yet
	DaemonSpawned     Name = "daemon.spawned"      // a companion's process was started; it has not answered
	FileWritten       Name = "file.written"        // a file is whole beside its place
	FileRenamed       Name = "file.renamed"        // and in its place; its name may not be durable

	// Its end, when it is asked to.
	ServeUnlisted Name = "serve.unlisted" // its address cannot be read any more
	ServeLetGo    Name = "serve.let-go"   // it holds no sandbox; the records are open

	// Every write of records.
	RecordsWritten   Name = "records.written"   // before the commit: none of it is durable
	RecordsCommitted Name = "records.committed" // behind it: nobody was told

	// A create. The record is made beside the machine.
	CallBegun        Name = "call.begun"        // the id that a call under a key is to make is on record
	CreateBegun      Name = "create.begun"      // its turn has come; there is nothing of it
	CreateRecorded   Name = "create.recorded"   // the sandbox is on record as new
	MachineDir       Name = "machine.dir"       // its state directory is made
	GroupMade        Name = "group.made"        // a control group of it is, in one hierarchy of those there are
	MachineGroup     Name = "machine.group"     // its control groups are
	MachineBundle    Name = "machine.bundle"    // its description is written
	MachineProcesses Name = "machine.processes" // its kernel runs, and this process holds nothing of it
	MachineHandles   Name = "machine.handles"   // its processes are held
	MachineLink      Name = "machine.link"      // its kernel has its end of the link
	StateWritten     Name = "state.written"     // the new state of a machine is beside the old one
	MachinePrepared  Name = "machine.prepared"  // it can be started
	MachineStarting  Name = "machine.starting"  // its state says that it is being started
	MachineBooted    Name = "machine.booted"    // its first process runs; its state does not say so
	MachineRunning   Name = "machine.running"   // its state says so
	StartRuns        Name = "start.runs"        // its machine runs; its guest has not been told who it is
	StartKept        Name = "start.kept"        // the keeper has its handles and its deadline
	StartLinked      Name = "start.linked"      // the gateway serves its link
	StartUp          Name = "start.up"          // the keeper, the gateway and the guest are done
	StartGreeted     Name = "start.greeted"     // its guest has answered
	CreateMade       Name = "create.made"       // record and machine are there; the record says new
	CreateFinished   Name = "create.finished"   // the record says running; the caller was not answered
	CallFinished     Name = "call.finished"     // the answer is kept under the caller's key
	UndoKilled       Name = "undo.killed"       // of a start that failed, the machine is gone

	// A machine that nobody has asked for.
	PrepareMade      Name = "prepare.made"      // it runs, and its guest has answered; no create finds it
	PrepareShelved   Name = "prepare.shelved"   // a create finds it
	PrepareTaken     Name = "prepare.taken"     // a create has it, and nobody else
	PrepareDiscarded Name = "prepare.discarded" // one too many is gone; its place is still counted
	PrepareDisposed  Name = "prepare.disposed"  // one is gone with its server's end, or because it was of no use

	// A command.
	ExecLaunched Name = "exec.launched" // it runs inside; nobody outside knows
	ExecRecorded Name = "exec.recorded" // its start, or its end, is on record
	ExecReported Name = "exec.reported" // its end is; the guest keeps it still

	// Pause, resume, a new deadline.
	TurnBegun      Name = "turn.begun"      // a pause or resume is on record as under way
	MachineTurning Name = "machine.turning" // its state says so; its kernel was not asked
	MachineTurned  Name = "machine.turned"  // its kernel has done it; its state does not say so
	TurnMade       Name = "turn.made"       // the node has done it
	TurnFinished   Name = "turn.finished"   // it is on record as done
	ExtendRecorded Name = "extend.recorded" // the new deadline is on record; node and keeper have the old one
	DeadlineKept   Name = "deadline.kept"   // the keeper has it, the node not

	// An end.
	KillBegun        Name = "kill.begun"        // the kill is on record as under way
	MachineDead      Name = "machine.dead"      // its processes are gone
	GroupRemoved     Name = "group.removed"     // and a control group of it, in one hierarchy
	MachineNoGroup   Name = "machine.no-group"  // and its control groups
	MachineNoState   Name = "machine.no-state"  // and what gVisor keeps of it
	MachineNoFiles   Name = "machine.no-files"  // and its files
	EndCleared       Name = "end.cleared"       // and its link
	EndExecs         Name = "end.execs"         // its commands' ends are on record
	EndCharged       Name = "end.charged"       // what it used is
	EndRecorded      Name = "end.recorded"      // its end is
	EndTold          Name = "end.told"          // the node knows that it is; the keeper has its note still
	EndForgotten     Name = "end.forgotten"     // the keeper has forgotten it
	KillMade         Name = "kill.made"         // the node says that it is gone; the record says killing
	UsageStored      Name = "usage.stored"      // intervals of use are on record, and kept in memory as if not
	ReapDue          Name = "reap.due"          // a sweep has found a sandbox over its time
	CompanionEmpty   Name = "companion.empty"   // a companion that died is replaced; the new one holds nothing
	CompanionFilled  Name = "companion.filled"  // and this one does
	BuildRecorded    Name = "build.recorded"    // a build is on record as queued
	ImageInstalled   Name = "image.installed"   // its image is in the store; nothing else says so
	BuildLogKept     Name = "build.log-kept"    // and its log is kept
	BuildRemembered  Name = "build.remembered"  // and the next build of its like finds it
	BuildMade        Name = "build.made"        // it is made; there is no template
	TemplateRecorded Name = "template.recorded" // there is; the build is on record as running
	BuildStored      Name = "build.stored"      // how far a build has come is on record

	// The next server's start.
	AdoptFetched   Name = "adopt.fetched"    // the keeper has given a sandbox's handles
	AdoptLinked    Name = "adopt.linked"     // the gateway serves its link again
	AdoptMade      Name = "adopt.made"       // its machine is taken over
	AdoptTold      Name = "adopt.told"       // the keeper was told of its epoch and deadline
	AdoptGone      Name = "adopt.gone"       // what was left of one that is gone is removed; its record says that it lives
	RecoverAdopted Name = "recover.adopted"  // a sandbox is taken over; what was half done with it is not finished
	RecoverLost    Name = "recover.lost"     // one that is gone is on record as that; the keeper's note is still there
	SweepKilled    Name = "sweep.killed"     // of one that is not on record, the processes are gone
	SweepNoGroup   Name = "sweep.no-group"   // and the control groups
	SweepNoFiles   Name = "sweep.no-files"   // and the files
	SweepNoLink    Name = "sweep.no-link"    // and the link; the keeper has its note
	RecoverMended  Name = "recover.mended"   // records and host agree
	RecoverBuilds  Name = "recover.no-build" // builds that were cut off are on record as that
)

// The points of the keeper and the gateway.
const (
	SocketMade    Name = "socket.made"    // its socket accepts, beside its place: nobody can find it
	KeeperStored  Name = "keeper.stored"  // it has a sandbox's handles; the server was not answered
	KeeperMoved   Name = "keeper.moved"   // it has a new deadline
	KeeperKilled  Name = "keeper.killed"  // it has killed a sandbox at its deadline
	KeeperDropped Name = "keeper.dropped" // it has forgotten a sandbox
	EgressServes  Name = "egress.serves"  // the gateway serves a link
	EgressDropped Name = "egress.dropped" // it does no more
)

// All returns every point, those of the server first.
func All() []Name {
	return []Name{
		KeyWritten, KeyPlaced, ServeRecordsOpen, ServeCompanionsUp, ServeKeyOnRecord, ServeListening, DaemonSpawned,
		FileWritten, FileRenamed, ServeUnlisted, ServeLetGo, RecordsWritten, RecordsCommitted,
		CallBegun, CreateBegun, CreateRecorded, MachineDir, GroupMade, MachineGroup, MachineBundle, MachineProcesses, MachineHandles, MachineLink,
		StateWritten, MachinePrepared, MachineStarting, MachineBooted, MachineRunning, StartRuns, StartKept, StartLinked, StartUp,
		StartGreeted, CreateMade, CreateFinished, CallFinished, UndoKilled,
		PrepareMade, PrepareShelved, PrepareTaken, PrepareDiscarded, PrepareDisposed,
		ExecLaunched, ExecRecorded, ExecReported,
		TurnBegun, MachineTurning, MachineTurned, TurnMade, TurnFinished, ExtendRecorded, DeadlineKept,
		KillBegun, MachineDead, GroupRemoved, MachineNoGroup, MachineNoState, MachineNoFiles, EndCleared, EndExecs, EndCharged, EndRecorded, EndTold,
		EndForgotten, KillMade, UsageStored, ReapDue, CompanionEmpty, CompanionFilled,
		BuildRecorded, ImageInstalled, BuildLogKept, BuildRemembered, BuildMade, TemplateRecorded, BuildStored,
		AdoptFetched, AdoptLinked, AdoptMade, AdoptTold, AdoptGone, RecoverAdopted, RecoverLost, SweepKilled, SweepNoGroup, SweepNoFiles, SweepNoLink,
		RecoverMended, RecoverBuilds,
		SocketMade, KeeperStored, KeeperMoved, KeeperKilled, KeeperDropped, EgressServes, EgressDropped,
	}
}
