package main

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/convergo/convergo"
)

// folder is a data folder that this process holds: nobody else runs a platform on it.
type folder struct {
	path    string
	lock    *flock.Flock
	shared  bool // the secrets are a file that other processes read too
	made    bool // the secrets were made by this process, and are in its memory only: the folder is new; see keepSecrets
	Secrets secrets
	// Died is when the process that held it last was surely alive, if it did not stop cleanly; zero when it did.
	Died time.Time
}

// secrets are made once per data folder and kept in secrets.json, readable by its owner only.
type secrets struct {
	OperatorKey   string `json:"operator_key"`   // bearer of set-up and operations requests
	SessionSecret string `json:"session_secret"` // signs the sessions of users, and client tokens
	ChannelSecret string `json:"channel_secret"` // whsec_…: signs notices and requests between us and the payment channel
	// PlatformID is no secret: it is on every event. It stays when a secret is changed; see platform.
	PlatformID string `json:"platform_id,omitempty"`
}

const (
	lockFile    = "LOCK"
	aliveFile   = "RUNNING" // there while a platform runs; left behind by one that was killed
	secretsFile = "secrets.json"
)

// openFolder makes the folder if need be and takes its lock. When another process holds it the error says which. The secrets are
// those of the file secretsPath; when that is empty, the folder's own.
func openFolder(path, secretsPath string) (*folder, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	lock := flock.New(filepath.Join(path, lockFile))
	got, err := lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("data folder %s: lock: %w", path, err)
	}
	if !got {
		return nil, fmt.Errorf("data folder %s is held by %s; stop that process or name another folder with --data", path, holder(path))
	}
	f := &folder{path: path, lock: lock}
	if err := f.occupy(secretsPath); err != nil {
		_ = lock.Unlock() // the first error is the one to tell
		return nil, err
	}
	return f, nil
}

func holder(path string) string {
	text, err := os.ReadFile(filepath.Join(path, lockFile))
	if err != nil || len(text) == 0 {
		return "another process"
	}
	return strings.TrimSpace(string(text))
}

func (f *folder) occupy(secretsPath string) error {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	who := fmt.Sprintf("process %d on %s since %s\n", os.Getpid(), host, time.Now().UTC().Format(time.RFC3339))
	if err := os.WriteFile(filepath.Join(f.path, lockFile), []byte(who), 0o600); err != nil {
		return fmt.Errorf("data folder %s: %w", f.path, err)
	}
	_, missing := os.Stat(f.file(secretsFile))
	switch f.shared, f.made = secretsPath != "", secretsPath == "" && errors.Is(missing, fs.ErrNotExist); {
	case f.made:
		f.Secrets = newSecrets()
	case f.shared:
		f.Secrets, err = readSecrets(secretsPath)
	default:
		f.Secrets, err = loadSecrets(f.path)
	}
	if err != nil {
		return err
	}
	switch info, err := os.Stat(f.file(aliveFile)); {
	case err == nil: // it stays as it is until the platform has made good what its death may have cost
		f.Died = info.ModTime()
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("data folder %s: %w", f.path, err)
	}
	if err := f.beat(); err != nil {
		return err
	}
	return syncFolder(f.path) // a power cut must not make an unclean stop look like a clean one
}

// beat says that the platform is alive. It is called every few seconds.
func (f *folder) beat() error {
	if err := os.WriteFile(f.file(aliveFile), nil, 0o600); err != nil {
		return fmt.Errorf("data folder %s: %w", f.path, err)
	}
	return nil
}

// close gives the folder back after a clean stop.
func (f *folder) close() error {
	return errors.Join(os.Remove(f.file(aliveFile)), f.lock.Unlock())
}

// abandon gives the folder back when the platform did not get as far as running. What an earlier death may have cost is
// not made good then: the sign of life that it left stays, with its time.
func (f *folder) abandon() error {
	if f.Died.IsZero() {
		return f.close()
	}
	return f.lock.Unlock()
}

func (f *folder) file(name string) string { return filepath.Join(f.path, name) }

// loadSecrets reads the folder's secrets, and makes them when there are none. Of several processes that make them at once, as
// `convergo secrets` on two machines with one folder, one makes them and the others read those.
func loadSecrets(path string) (secrets, error) {
	name := filepath.Join(path, secretsFile)
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		s := newSecrets()
		if err = s.create(name); err == nil {
			return s, nil
		}
		if errors.Is(err, fs.ErrExist) {
			text, err = os.ReadFile(name)
		}
	}
	if err != nil {
		return secrets{}, fmt.Errorf("secrets: %w", err)
	}
	return parseSecrets(name, text)
}

func newSecrets() secrets {
	return secrets{secret("op_"), secret(""), "whsec_" + base64.StdEncoding.EncodeToString(random()), newPlatformID()}
}

// create makes the file; fs.ErrExist when it is there.
func (s secrets) create(name string) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return createDurably(name, text)
}

// keepSecrets writes the secrets that this process has made: not before it is known that no database has another platform's tables. A start
// that ends earlier, however that comes, leaves none behind, by which the next one would take the folder for one that was here before.
func (f *folder) keepSecrets() error {
	if !f.made {
		return nil
	}
	switch err := f.Secrets.create(f.file(secretsFile)); {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("secrets: %s was made by somebody else in this moment: start again, with those", f.file(secretsFile))
	case err != nil:
		return fmt.Errorf("secrets: %w", err)
	}
	f.made = false
	return nil
}

// readSecrets reads the secrets that several processes share. None are made up here: another process would make others.
func readSecrets(name string) (secrets, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return secrets{}, fmt.Errorf("--secrets: %w; it is JSON with operator_key, session_secret and channel_secret, "+
			"such as `convergo secrets --data DIR` makes, and `convergo serve` in its data folder", err)
	}
	return parseSecrets(name, text)
}

func parseSecrets(name string, text []byte) (secrets, error) {
	var s secrets
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("secrets: %s is not valid: restore it from a backup, or delete it and make new ones with `convergo secrets` "+
			"(old sessions and links end)", name)
	}
	if s.OperatorKey == "" || s.SessionSecret == "" || s.ChannelSecret == "" {
		return s, fmt.Errorf("secrets: %s lacks one of operator_key, session_secret, channel_secret", name)
	}
	if err := convergo.ValidateOrigin(s.PlatformID); err != nil {
		return s, fmt.Errorf("secrets: %s: platform_id: %w", name, err)
	}
	return s, nil
}

// writeDurably writes beside the name and renames, so that a kill leaves the old file or the new one.
func writeDurably(name string, text []byte) error {
	f, err := os.OpenFile(name+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err := fill(f, text); err != nil {
		return err
	}
	if err := os.Rename(name+".new", name); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(name))
}

// createDurably is writeDurably for a file that must not be there: fs.ErrExist when it is, also when another process was first. A file
// system without links, which is none for several machines, does not see that other process.
func createDurably(name string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*.new")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // after a rename it is not there
	if err := fill(f, text); err != nil {
		return err
	}
	switch err := os.Link(f.Name(), name); {
	case errors.Is(err, fs.ErrExist):
		return err
	case err != nil:
		if err := os.Rename(f.Name(), name); err != nil {
			return err
		}
	}
	return syncFolder(filepath.Dir(name))
}

// fill writes all of the file, syncs and closes it.
func fill(f *os.File, text []byte) error {
	_, err := f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}

// syncFolder makes durable which files the folder has.
func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func random() []byte {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails, by its documentation
	return b
}

func secret(prefix string) string { return prefix + base64.RawURLEncoding.EncodeToString(random()) }
