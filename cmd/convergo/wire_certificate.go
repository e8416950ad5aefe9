package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// certificate is what can be done about a certificate, the server's or ours.
func (a address) certificate(err error) string {
	names := a.tlsNames()
	var unfit x509.CertificateInvalidError
	var misnamed x509.HostnameError
	switch text := err.Error(); {
	case errors.As(err, &misnamed):
		return a.shower(text) + a.misnamed(misnamed)
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return a.unknownAuthority(text)
	case errors.As(err, &unfit):
		remedy := "have another one issued for that server"
		if ofAuthority(err, unfit) {
			remedy = fmt.Sprintf("name the file of its new one with ?%s=FILE, or, if the server shows it, have the new one shown", names.ca)
		}
		what := fault(unfit, ofAuthority(err, unfit), time.Now())
		return fmt.Sprintf("%s%s, and %s takes none such: %s%s", a.shower(text), what, a.asksForTLS(), remedy, orTheClock(unfit))
	case !strings.Contains(text, "remote error: tls: "):
		return ""
	case a.Query().Get(names.cert) == "" && strings.Contains(text, "certificate"), a.Query().Get(names.cert) == "" && strings.Contains(text, "handshake failure"):
		return "the server asks for a client certificate: name one with ?" + names.pair
	case !strings.Contains(text, "certificate"):
		return ""
	case a.outOfTime(time.Now()) != "":
		return a.outOfTime(time.Now())
	case strings.Contains(text, "expired certificate"):
		return fmt.Sprintf("the server takes the client certificate of ?%s for expired, and it is not: its authority's own may be, or else set the clocks right",
			names.cert)
	}
	return fmt.Sprintf("the server does not accept the client certificate of ?%s: name one that is signed by an authority that it trusts", names.cert)
}

// shower is whose certificate it is.
func (a address) shower(text string) string {
	switch {
	case a.Scheme != "redis" || !a.Query().Has("primary"):
		return "the server's certificate "
	case strings.Contains(text, "all sentinels"):
		return "the Sentinel's certificate "
	}
	return "the certificate of the server that the Sentinels name "
}

// misnamed is about a certificate that is for another host than the one that was dialed.
func (a address) misnamed(err x509.HostnameError) string {
	hosts := hostsOf(err.Certificate)
	if hosts == "" { // no name of ours would fit
		what := fmt.Sprintf("names no host (subjectAltName): have one issued that names %s", err.Host)
		if a.Scheme == "postgres" {
			what += a.tlsNames().host
		}
		return what
	}
	what := fmt.Sprintf("is for another host, %s and not %s: write a name that it is for as the host", hosts, err.Host)
	switch {
	case a.Scheme == "redis" && a.Query().Has("primary"): // the Sentinels tell where the primary is
		return what + ", or, if the Sentinels and the servers have one in common, as ?server_name=NAME"
	case a.Query().Has("server_name"):
		return what + " or in ?server_name"
	}
	return what + a.tlsNames().host
}

// hostsOf are the first of those that the certificate is for.
func hostsOf(cert *x509.Certificate) string {
	all := slices.Clone(cert.DNSNames)
	for _, ip := range cert.IPAddresses {
		all = append(all, ip.String())
	}
	if len(all) > 3 {
		all = append(all[:3], "…")
	}
	return strings.Join(all, ", ")
}

func (a address) unknownAuthority(text string) string {
	ca := a.tlsNames().ca
	if a.Query().Get(ca) == "" {
		return fmt.Sprintf("%sis signed by nobody whom this machine trusts: name the file of its authority with ?%s=FILE", a.shower(text), ca)
	}
	return fmt.Sprintf("%sis not signed by the authority of ?%s: name the file of the one that signed it", a.shower(text), ca)
}

// ofAuthority tells whether what is unfit is not the certificate of a server, but of who signed it. One that has signed itself may be both.
func ofAuthority(err error, unfit x509.CertificateInvalidError) bool {
	var failed *tls.CertificateVerificationError
	if errors.As(err, &failed) && len(failed.UnverifiedCertificates) > 0 && failed.UnverifiedCertificates[0].Equal(unfit.Cert) {
		return false
	}
	return unfit.Cert != nil && unfit.Cert.IsCA
}

// fault is why a certificate of the right authority and host cannot be used, or why its authority's cannot.
func fault(err x509.CertificateInvalidError, authoritys bool, now time.Time) string {
	switch {
	case authoritys && expiry(err.Cert, now) != "":
		return fmt.Sprintf("is of the authority %q, whose own %s", err.Cert.Subject.CommonName, expiry(err.Cert, now))
	case err.Reason == x509.Expired && err.Cert != nil && expiry(err.Cert, now) != "":
		return expiry(err.Cert, now)
	case err.Reason == x509.Expired: // by a clock that has moved meanwhile
		return "has expired or is not valid yet"
	case err.Reason == x509.IncompatibleUsage:
		return "is for other uses than to be a server's (extendedKeyUsage serverAuth)"
	}
	return "cannot be used"
}

// orTheClock is the other thing that can be wrong when a certificate is out of its time.
func orTheClock(err x509.CertificateInvalidError) string {
	if err.Reason == x509.Expired {
		return ", or, if this machine's clock is wrong, set it right"
	}
	return ""
}

// expiry is what is wrong with the time of a certificate, "" when nothing is.
func expiry(cert *x509.Certificate, now time.Time) string {
	const form = "2006-01-02 15:04:05 UTC"
	switch {
	case now.After(cert.NotAfter):
		return "expired on " + cert.NotAfter.UTC().Format(form)
	case now.Before(cert.NotBefore):
		return "is not valid before " + cert.NotBefore.UTC().Format(form)
	}
	return ""
}

// outOfTime is about the certificate that the address has us show, "" when its time is right or it cannot be read.
func (a address) outOfTime(now time.Time) string {
	names := a.tlsNames()
	pair, err := tls.LoadX509KeyPair(a.Query().Get(names.cert), a.Query().Get(names.key))
	if err != nil || expiry(pair.Leaf, now) == "" {
		return ""
	}
	return fmt.Sprintf("the client certificate of ?%s %s: have another one issued, or, if this machine's clock is wrong, set it right",
		names.cert, expiry(pair.Leaf, now))
}

// tlsNames are the parameters of an address that are about TLS.
type tlsNames struct{ ca, cert, key, pair, on, all, host string }

func (a address) tlsNames() tlsNames {
	if a.Scheme == "postgres" {
		return tlsNames{
			ca: "sslrootcert", cert: "sslcert", key: "sslkey", pair: "sslcert=FILE&sslkey=FILE", on: "sslmode=verify-full&sslrootcert=FILE", all: "?sslmode",
			host: ", or do not compare them, with ?sslmode=verify-ca",
		}
	}
	return tlsNames{
		ca: "ca", cert: "cert", key: "key", pair: "cert=FILE&key=FILE", on: "tls=true, or ?ca=FILE for an authority of your own",
		all: "?tls, ?ca, ?cert and ?server_name", host: ", or as ?server_name=NAME",
	}
}

// tls tells whether the address asks for it.
func (a address) tls() bool {
	query := a.Query()
	if a.Scheme == "postgres" {
		return query.Get("sslmode") != "disable"
	}
	return query.Get("tls") == "true" || query.Has("ca") || query.Has("cert") || query.Has("server_name")
}

// asksForTLS are the parameters of the address by which it does.
func (a address) asksForTLS() string {
	var all []string
	for _, name := range []string{"sslmode", "sslrootcert", "tls", "ca", "cert", "server_name"} {
		if a.Query().Has(name) {
			all = append(all, "?"+name)
		}
	}
	if len(all) == 0 {
		return "TLS"
	}
	return "TLS (" + strings.Join(all, ", ") + ")"
}

// refusedByEndpoint is about keys of the file that webhook: names.
func refusedByEndpoint(err error) string {
	var unfit x509.CertificateInvalidError
	var misnamed x509.HostnameError
	switch text := err.Error(); {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return "the endpoint's certificate is signed by nobody whom this machine trusts: name the file of its authority in that file, as ca"
	case errors.As(err, &misnamed) && hostsOf(misnamed.Certificate) == "":
		return fmt.Sprintf("the endpoint's certificate names no host (subjectAltName): one must be issued that names %s, the host of its url", misnamed.Host)
	case errors.As(err, &misnamed):
		return fmt.Sprintf("the endpoint's certificate is for another host, %s and not %s: write a name that it is for in its url",
			hostsOf(misnamed.Certificate), misnamed.Host)
	case errors.As(err, &unfit):
		remedy := "another one must be issued for it"
		if ofAuthority(err, unfit) {
			remedy = "name the file of its new one in that file, as ca"
		}
		what := fault(unfit, ofAuthority(err, unfit), time.Now())
		return fmt.Sprintf("the endpoint's certificate %s, and https in its url takes none such: %s%s", what, remedy, orTheClock(unfit))
	case strings.Contains(text, "remote error: tls: ") && strings.Contains(text, "certificate"):
		return "the endpoint asks for a client certificate, which is not sent to any: let it go by the signature"
	case strings.Contains(text, " answered 401"), strings.Contains(text, " answered 403"):
		return "the endpoint does not accept the signature: let its secret be among the secrets of that file, and both clocks be right"
	}
	return ""
}
