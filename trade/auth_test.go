package trade

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

const testSecret = "0123456789abcdef"

func now() time.Time { return time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC) }

func TestASessionIsItsUsersUntilItExpires(t *testing.T) {
	token, err := MintSession([]byte(testSecret), "u-1", now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if user, err := ReadSession([]byte(testSecret), token, now()); err != nil || user != "u-1" {
		t.Errorf("session of %q, %v", user, err)
	}
	if _, err := ReadSession([]byte(testSecret), token, now().Add(time.Hour)); !errors.Is(err, ErrTokenExpired) {
		t.Errorf("after its time: %v", err)
	}
	other := base64.RawURLEncoding.EncodeToString([]byte(`{"u":"u-2","e":9999999999999999}`))
	parts := strings.Split(token, ".")
	for name, forged := range map[string]string{
		"other claims":  parts[0] + "." + other + "." + parts[2],
		"no signature":  parts[0] + "." + other + ".",
		"two parts":     parts[0] + "." + other,
		"other purpose": "ct1" + strings.TrimPrefix(token, "cs1"),
		"longer":        token + "A",
		"nothing":       "",
		"dots":          "cs1...",
		"huge":          "cs1." + strings.Repeat("A", 10_000) + ".x",
	} {
		if user, err := ReadSession([]byte(testSecret), forged, now()); !errors.Is(err, ErrTokenForged) {
			t.Errorf("%s: session of %q, %v", name, user, err)
		}
	}
	if _, err := ReadSession([]byte("another-secret-x"), token, now()); !errors.Is(err, ErrTokenForged) {
		t.Errorf("another secret: %v", err)
	}
	if _, err := MintSession([]byte("short"), "u-1", now()); err == nil {
		t.Error("a short secret signed a session")
	}
}

func TestNobodyGetsInWithoutAKey(t *testing.T) {
	var seen Principal
	handler := Authenticate(AuthConfig{
		OperatorKey: "op", Secret: []byte(testSecret), Now: now, Public: func(r *http.Request) bool { return r.URL.Path == "/open" },
	})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen, _ = PrincipalOf(r.Context()) }))
	session, err := MintSession([]byte(testSecret), "u-1", now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path   string
		header []string
		status int
		want   Principal
	}{
		{"/x", nil, 401, Principal{}},
		{"/x", []string{"Bearer op"}, 200, Principal{KindOperator, "operator"}},
		{"/x", []string{"bearer op"}, 200, Principal{KindOperator, "operator"}},
		{"/x", []string{"Bearer " + session}, 200, Principal{KindUser, "u-1"}},
		{"/x", []string{"Bearer " + session + "x"}, 401, Principal{}},
		{"/x", []string{"Bearer op", "Bearer " + session}, 401, Principal{}},
		{"/x", []string{"Bearer "}, 401, Principal{}},
		{"/x", []string{"Basic op"}, 401, Principal{}},
		{"/open", nil, 200, Principal{}},
		{"/open", []string{"Bearer wrong"}, 200, Principal{}},
	} {
		seen = Principal{}
		r := httptest.NewRequest(http.MethodGet, c.path, nil)
		r.Header["Authorization"] = c.header
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != c.status || seen != c.want {
			t.Errorf("%s with %.40q: %d as %v, want %d as %v", c.path, c.header, w.Code, seen, c.status, c.want)
		}
		if w.Code == 401 && (w.Header().Get("Content-Type") != "application/problem+json" || !strings.Contains(w.Body.String(), `"remedy"`)) {
			t.Errorf("%s: 401 is no problem with a remedy: %s", c.path, w.Body)
		}
	}
}

func TestWithoutAnOperatorKeyNobodyIsOperator(t *testing.T) {
	handler := Authenticate(AuthConfig{Secret: []byte(testSecret)})(http.NotFoundHandler())
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Authorization", "Bearer ")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	if w.Code != http.StatusUnauthorized {
		t.Errorf("an empty key let somebody in: %d", w.Code)
	}
}

func TestWhatBelongsToAUserIsHisAndTheOperators(t *testing.T) {
	user, operator := WithPrincipal(context.Background(), Principal{KindUser, "u-1"}), WithPrincipal(context.Background(), Principal{KindOperator, "operator"})
	if RequireOwner(user, "u-1") != nil || RequireOwner(user, "u-2") == nil || RequireOwner(operator, "u-2") != nil || RequireOwner(context.Background(), "u-1") == nil {
		t.Error("the owner check is wrong")
	}
	if RequireOperator(user) == nil || RequireOperator(operator) != nil || RequireOperator(context.Background()) == nil {
		t.Error("the operator check is wrong")
	}
	// A user who calls himself "operator" is still a user.
	if RequireOperator(WithPrincipal(context.Background(), Principal{KindUser, "operator"})) == nil {
		t.Error("a user named operator is an operator")
	}
	if _, err := RequireUser(operator); err == nil {
		t.Error("an operator is a user")
	}
}
